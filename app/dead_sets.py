"""Our dead sets, for the command and for a Python shell: what died, of which task and domain, and its way back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.broker.dead_letters.audit import Audit
from app.broker.dead_letters.letters import DeadLetter, LetterFilter
from app.broker.dead_letters.sets import DeadSets, export_name
from app.broker.errors import InvalidMessage
from app.broker.publishing import get_publisher
from app.crawl.urls import domain_named
from app.topology.policies import policies
from config.routes import ROUTE_BY_TYPE
from config.settings import Settings, get_settings


def dead_sets(settings: Settings | None = None) -> DeadSets:
    """Return the dead sets of this process's broker, every act on them audited.

    In `celery -A app shell` or any Python:

        from app.dead_sets import dead_sets, where
        dead = dead_sets()
        dead.groups()
        dead.replay(where(domain="site.gov", reason="server-error"), budget="fresh", canary=60.0)
    """
    settings = settings or get_settings()
    publisher = get_publisher(settings.broker, timeout=settings.publish_timeout)
    return DeadSets.of(policies(settings), settings.broker, publisher, audit=Audit(audit_file(settings)))


def where(*, task: str = "", domain: str = "", **told: Any) -> LetterFilter:
    """Return a condition; `task` and `domain` are found in plain messages, too. Raises InvalidUrl."""
    name = domain_named(domain) if domain else ""

    def also(letter: DeadLetter) -> bool:
        return task in ("", task_of(letter)) and name in ("", domain_of(letter))

    return LetterFilter(also=also if task or name else None, **told)


def task_of(letter: DeadLetter) -> str:
    """Return the name of the task that a message is for, or an empty text where nobody can tell."""
    kind = payload_of(letter).get("type")
    route = ROUTE_BY_TYPE.get(kind) if isinstance(kind, str) else None
    return letter.cause.task or (route.task if route else "")


def domain_of(letter: DeadLetter) -> str:
    """Return the domain that a message is about, or an empty text."""
    payload = payload_of(letter)
    text = payload.get("domain") or payload.get("host") or payload.get("url")
    try:
        return domain_named(text) if isinstance(text, str) else ""
    except InvalidMessage:
        return ""


def payload_of(letter: DeadLetter) -> Mapping[str, Any]:
    """Return the named arguments of a message; a lone unnamed one is a URL."""
    match letter.arguments():
        case [[str(url), *_], dict(named)]:
            return {"url": url, **named}
        case [list(), dict(named)] | dict(named):
            return named
    return {}


def audit_file(settings: Settings) -> Path:
    """Return where acts on dead messages are noted."""
    return folder(settings) / "audit.jsonl"


def new_export(settings: Settings) -> Path:
    """Return where messages that are dropped now are kept."""
    return folder(settings) / export_name()


def folder(settings: Settings) -> Path:
    """Return the folder of audit and exports."""
    return settings.dead_dir or settings.data_dir / "dead"
