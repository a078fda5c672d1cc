"""What a message of the `site` exchange asks for: one URL, its domain, its crawl."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from app.broker.errors import InvalidMessage
from app.crawl.urls import Scope, canonical_key, domain_of, parse_target
from app.errors import OutOfScope

#: Message keys that name a page. Others of the vocabulary (timeout, callback_queue...) are the tasks' own.
FIELDS = ("url", "domain", "path", "scheme", "crawl_id", "depth")


@dataclass(frozen=True, slots=True)
class Target:
    """A page to work on. `domain` names crawl and pack, `key` is the canonical URL, `crawl_id` may be empty."""

    url: str
    domain: str
    key: str
    crawl_id: str = ""
    depth: int = 0


def parse(message: Mapping[str, Any], *, scope: Literal["exact", "suffix"], max_length: int) -> Target:
    """Return the target of a message; raises InvalidUrl, InvalidMessage or OutOfScope saying why."""
    url, domain = _text(message, "url"), _text(message, "domain")
    if not url and not domain:
        raise InvalidMessage("a message needs `url` or `domain`, and has neither")
    path, scheme = _text(message, "path") or "/", _text(message, "scheme") or "https"
    absolute = parse_target(url=url or None, domain=domain or None, path=path, scheme=scheme, max_length=max_length)
    name = (
        domain_of(parse_target(domain=domain, scheme=scheme, max_length=max_length)) if domain else domain_of(absolute)
    )
    if not Scope(name, mode=scope).contains(absolute):
        raise OutOfScope(f"{absolute} is not in the domain {name}")
    return Target(absolute, name, canonical_key(absolute), _text(message, "crawl_id"), _depth(message))


def parse_domain(message: Mapping[str, Any], *, max_length: int) -> str:
    """Return the domain of a message that names no page; raises InvalidMessage or InvalidUrl."""
    url, domain = _text(message, "url"), _text(message, "domain")
    if not url and not domain:
        raise InvalidMessage("a message needs `domain`, and has none")
    scheme = _text(message, "scheme") or "https"
    return domain_of(parse_target(url=url or None, domain=domain or None, scheme=scheme, max_length=max_length))


def _text(message: Mapping[str, Any], field: str) -> str:
    value = message.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidMessage(f"{field} {value!r}: expected text")
    return value


def _depth(message: Mapping[str, Any]) -> int:
    value = message.get("depth", 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidMessage(f"depth {value!r}: expected a whole number of links from the start page")
    return value
