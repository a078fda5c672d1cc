"""URLs as the search page shows them: which ones are links, and how people read them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

from app.crawl.urls import parse_domain

#: Percent-encoded bytes of characters beyond ASCII.
_ENCODED = re.compile(r"(?:%[89A-Fa-f][0-9A-Fa-f])+")


def parse_domains(given: Iterable[str]) -> tuple[str, ...]:
    """Return the domains of a form as they are indexed, each once; raises InvalidUrl. Empty fields are left out."""
    return tuple(dict.fromkeys(parse_domain(domain) for domain in given if domain.strip()))


def is_followable(url: str) -> bool:
    """Return whether a URL may be a link: of http or https."""
    return url.lower().startswith(("http://", "https://"))


def address_of(url: str) -> str:
    """Return a URL as people read it: without its scheme and a slash at the end.

    Its percent-encoded letters are decoded if all are printable: others could change the text's direction.
    """

    def decoded(match: re.Match[str]) -> str:
        text = unquote(match[0], errors="replace")
        return text if text.isprintable() and "\N{REPLACEMENT CHARACTER}" not in text else match[0]

    return _ENCODED.sub(decoded, url.partition("://")[2].removesuffix("/") if is_followable(url) else url)


def site_and_address(url: str, domain: str, names: Mapping[str, str]) -> tuple[str, str]:
    """Return the name of the site to show before an address, and the address. Without a domain no site is shown."""
    address = address_of(url)
    if domain in names:
        return names[domain], f" · {address}"
    if domain and (address == domain or address.startswith(f"{domain}/")):
        return domain, address.removeprefix(domain)
    return domain, f" · {address}" if domain else address
