"""The dead sets of this application: its policies' sets, audited, and the task and domain of their letters."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from app.broker.dead_letters import Audit, DeadLetter, DeadSets, LetterFilter, LetterSummary, OnWarning
from app.broker.dead_letters.replay import ReplayJournal
from app.broker.dead_letters.sets import Condition, log_warning
from app.broker.errors import InvalidMessage
from app.broker.publishing import get_publisher
from app.crawl.urls import parse_domain
from app.storage.open import store_of
from app.storage.reading import parsing
from app.storage.store import ObjectStore
from app.topology.retry_policies import retry_policies
from config.routes import ROUTE_BY_TYPE
from config.settings import Settings, get_settings

#: Characters of what a message is about.
MAX_SUBJECT = 500
#: Keys of the notes of replays begin with this; the dead set follows.
SENT_PREFIX: Final = "dead-sent/"
#: Names of labels in the summaries of letters.
_TASK, _DOMAIN = "task", "domain"


def dead_sets(settings: Settings | None = None, *, on_warning: OnWarning = log_warning) -> DeadSets:
    """Return the dead sets of this process's broker. Every operation on them is audited.

    `on_warning` gets what an operator should know, such as letters that were not read. By default it is logged.

    In `celery -A app shell` or any Python:

        from app.broker.dead_letters import ReplayOptions
        from app.messages.dead_sets import dead_sets, where
        dead = dead_sets()
        dead.groups()
        dead.replay(where(domain="site.gov", reason="server-error"), ReplayOptions(budget="fresh", canary=60.0))
    """
    settings = settings or get_settings()
    publisher = get_publisher(settings.broker)
    audit = Audit(dead_directory(settings) / "audit.jsonl")
    return DeadSets(
        retry_policies(settings),
        settings.broker,
        publisher,
        audit=audit,
        labels=labels_of,
        journal=StoredReplayJournal(store_of(settings)),
        on_warning=on_warning,
    )


class StoredReplayJournal(ReplayJournal):
    """The notes of replays, each an object of the store. Methods raise StoreError."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def note(self, set_name: str, ids: Sequence[str]) -> str:
        """Write the ids of letters that are about to be sent."""
        key = f"{SENT_PREFIX}{set_name}/{uuid.uuid4().hex}.json"
        self._store.put(key, json.dumps(list(ids)).encode())
        return key

    def notes(self, set_name: str) -> dict[str, list[str]]:
        """Return the ids of each note, by its key."""
        found = {}
        for stat in self._store.list(f"{SENT_PREFIX}{set_name}/"):
            data = self._store.get(stat.key).data
            with parsing("the note of a replay", data):
                found[stat.key] = [str(each) for each in json.loads(data)]
        return found

    def delete(self, keys: Iterable[str]) -> None:
        """Delete notes."""
        for key in keys:
            self._store.delete(key)


def where(*, task: str = "", domain: str = "", **fields: Any) -> Condition:
    """Return a condition; `task` and `domain` match envelopes, too, and `fields` are those of LetterFilter.

    Raises InvalidUrl for an invalid domain.
    """
    name, matches = parse_domain(domain) if domain else "", LetterFilter(**fields)

    def condition(letter: LetterSummary) -> bool:
        return matches(letter) and task in ("", task_of(letter)) and name in ("", domain_of(letter))

    return condition if task or name else matches


def task_of(letter: LetterSummary) -> str:
    """Return the name of the task that a letter is for, empty if unknown."""
    return _find_task(letter) if isinstance(letter, DeadLetter) else letter.labels.get(_TASK, "")


def domain_of(letter: LetterSummary) -> str:
    """Return the domain that a letter is about, empty if unknown."""
    return _find_domain(letter) if isinstance(letter, DeadLetter) else letter.labels.get(_DOMAIN, "")


def labels_of(letter: DeadLetter) -> Mapping[str, str]:
    """Return the labels of a whole letter that its summary in a shard's index keeps: its task and its domain."""
    return {_TASK: _find_task(letter), _DOMAIN: _find_domain(letter)}


def _find_task(letter: DeadLetter) -> str:
    kind = payload_of(letter).get("type")
    route = ROUTE_BY_TYPE.get(kind) if isinstance(kind, str) else None
    return letter.cause.task or (route.task if route else "")


def _find_domain(letter: DeadLetter) -> str:
    payload = payload_of(letter)
    text = payload.get("domain") or payload.get("host") or payload.get("url") or payload.get("site")
    try:
        return parse_domain(text) if isinstance(text, str) else ""
    except InvalidMessage:
        return ""


def payload_of(letter: DeadLetter) -> Mapping[str, Any]:
    """Return the named arguments of a letter. A single positional argument is a URL."""
    match letter.arguments():
        case [[str(url), *_], dict(named)]:
            return {"url": url, **named}
        case [list(), dict(named)] | dict(named):
            return named
    return {}


def subject_of(arguments: Any) -> str:
    """Return what arguments are about: their URL, domain or gid, or else their beginning.

    They are those of a message as `DeadLetter.arguments` returns them: `[positional, named]`, or an envelope.
    """
    match arguments:
        case [[*_], {"url": str(subject)}] | {"url": str(subject)} | [[str(subject), *_], _]:
            return subject[:MAX_SUBJECT]
        case [[*_], {"domain": str(subject)}] | {"domain": str(subject)} | [[*_], {"gid": str(subject)}]:
            return subject[:MAX_SUBJECT]
    return str(arguments)[:120]


def new_export(settings: Settings) -> Path:
    """Return the path of a new export file for letters that are dropped now."""
    time = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    return dead_directory(settings) / f"dropped-{time}.jsonl"


def dead_directory(settings: Settings) -> Path:
    """Return the directory of the audit file and the exports."""
    return settings.data_dir / "dead"
