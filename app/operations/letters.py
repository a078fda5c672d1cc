"""Acts on dead letters: replay, edit, redirect and drop them, and write notes about them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from pydantic import TypeAdapter

from app.broker.dead_letters import ActResult, DeadLetter, DeadSets, IdsBySet, ReplayOptions
from app.broker.dead_letters.acts import Halt, never_halt
from app.broker.dead_letters.replay import PLAIN_REPLAY
from app.broker.errors import InvalidMessage
from app.broker.nesting import read_json
from app.broker.policies.base import Address
from app.errors import ResourceNotFound
from app.messages.dead_sets import dead_directory, new_export
from app.operations.context import OperatorContext
from app.operations.stored_times import IsoTime
from app.storage.damage import decoded_if_intact, read_if_intact
from app.storage.reading import parsing
from app.storage.store import StoredObject
from app.storage.updating import update_object
from app.topology.declare import all_queues
from app.topology.model import declared_topology
from app.topology.queues import events_exchange
from app.topology.retry_policies import retry_policies
from app.topology.routing import routed_queues
from config.settings import Settings

Verb = Literal["replay", "edit", "redirect", "drop"]

#: What is said of a letter after each act.
DONE: Final[Mapping[Verb, str]] = {
    "replay": "replayed",
    "edit": "edited and replayed",
    "redirect": "redirected",
    "drop": "dropped",
}

#: The name of an export file.
_EXPORT: Final = re.compile(r"dropped-\d{8}T\d{6}\.\d{6}Z\.jsonl")
#: Keys of notes begin with this; the letter's id follows.
NOTES_PREFIX: Final = "notes/"
#: Characters of a note, and notes of a letter.
MAX_NOTE: Final = 2_000
MAX_NOTES: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterOrder:
    """What is done with chosen letters; a drop has no options."""

    verb: Verb
    options: ReplayOptions = PLAIN_REPLAY


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What an operator wrote about a letter; `at` is ISO 8601 in UTC."""

    at: IsoTime
    operator: str
    text: str


_NOTES: Final = TypeAdapter(list[Note])


def carry_out(
    ops: OperatorContext,
    order: LetterOrder,
    ids: IdsBySet,
    *,
    export: Path | None,
    on_progress: Callable[[int], None],
    halt: Halt = never_halt,
) -> ActResult:
    """Carry an order out on letters of one or more dead sets; dropped letters are appended to the file `export`.

    It stops between two batches when `halt` returns why. Raises DeadSetBusy, BrokerUnreachable and InvalidMessage.
    """
    if order.verb == "drop":
        return ops.dead_sets.drop(ids, export or new_export(ops.settings), halt=halt, on_progress=on_progress)
    return ops.dead_sets.replay(ids, order.options, halt=halt, on_progress=on_progress)


def summary(order: LetterOrder, result: ActResult) -> str:
    """Return the result of an order in one line."""
    parts = [f"{len(result.done):,} {DONE[order.verb]}"]
    parts += [f"{len(result.stayed):,} stayed"] if result.stayed else []
    parts += [f"{len(result.missing):,} were no longer there"] if result.missing else []
    parts += [f"stopped: {result.stopped}"] if result.stopped else []
    return "; ".join(parts)


def act_on_letters(
    ops: OperatorContext,
    order: LetterOrder,
    ids: IdsBySet,
    *,
    subject: str,
    why: str,
    export: Path | None = None,
    on_progress: Callable[[int], None],
) -> ActResult:
    """Carry an order out at once and audit it, as commands do. Raises as `carry_out` does, and RoleRequired."""
    with ops.act(f"{order.verb} letters", subject, why=why, **order.options.given()) as act:
        result = carry_out(ops, order, ids, export=export, on_progress=on_progress)
        act.result = summary(order, result)
    return result


def tidy_dead_sets(ops: OperatorContext, export: Path) -> tuple[dict[str, int], ActResult]:
    """Move the letters of long dead sets to shards; export and drop what the settings do not keep, audited.

    Return the letters in shards by set, and what was dropped. Raises BrokerUnreachable.
    """
    moved, dropped = ops.dead_sets.tidy(ops.settings.dead_max_letters, export)
    if dropped.done:
        result = summary(LetterOrder(verb="drop"), dropped)
        ops.audit.write(ops.operator, "drop letters", "what the settings do not keep", result=result, file=export.name)
    return moved, dropped


def export_file(ops: OperatorContext, name: str) -> Path:
    """Return the path of an export on this host; raises ResourceNotFound for any other name."""
    path = dead_directory(ops.settings) / name
    if not _EXPORT.fullmatch(name) or not path.is_file():
        raise ResourceNotFound(f"this host has no export {name[:80]!r}")
    return path


def find_letter(sets: DeadSets, ident: str) -> DeadLetter:
    """Return the letter with an id or the beginning of one. Raises ResourceNotFound unless there is exactly one."""
    try:
        [letter] = sets.find([ident])
    except InvalidMessage as error:
        raise ResourceNotFound(f"{error}. What was replayed or dropped, or an act works on, is not there") from error
    return letter


# Edits


def editable(letter: DeadLetter) -> str:
    """Return what of a letter can be edited: Celery's [args, kwargs] or another JSON value, else the body as text."""
    arguments = letter.arguments()
    if isinstance(arguments, str):
        return arguments
    text = json.dumps(arguments, indent=2, ensure_ascii=False)
    # JSON can escape what a page or a terminal must not show as it is.
    return "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)


def is_editable(letter: DeadLetter) -> bool:
    """Return whether a text field can hold the text to edit: text that is not JSON may have other characters."""
    try:
        letter.delivery.body.decode()
    except UnicodeDecodeError:
        return False
    return all(each.isprintable() or each in "\n\t" for each in editable(letter))


def edited_body(letter: DeadLetter, text: str) -> str:
    """Return the body of a letter with edited arguments; raises InvalidMessage for what its task could not decode.

    A body that was JSON must be JSON again. What Celery has beside args and kwargs stays as it is.
    """
    former = letter.arguments()
    if isinstance(former, str):
        return text.replace("\r\n", "\n")
    try:
        value = read_json(text.encode(errors="surrogatepass"))
    except ValueError as error:
        raise InvalidMessage(f"arguments: not JSON: {error}") from None
    whole = read_json(letter.delivery.body)
    if former == whole:
        return json.dumps(value)
    if not (isinstance(value, list) and len(value) == 2 and isinstance(value[0], list) and isinstance(value[1], dict)):
        raise InvalidMessage("arguments: expected [args, kwargs], a list and an object, as the message has them")
    return json.dumps([*value, whole[2]])


# Redirections


def redirect_targets(settings: Settings) -> list[str]:
    """Return the queues to which letters can be redirected: those whose policy dead-letters what fails again."""
    return sorted(queue for queue, policy in retry_policies(settings).by_queue.items() if policy.dead is not None)


def redirect_address(settings: Settings, *, queue: str = "", exchange: str = "", routing_key: str = "") -> Address:
    """Return the address of a redirect target, or an exchange and key that this application's topology routes to one.

    A dead set that is bound as an alternate exchange does not count: the letter would come back at once. Raises
    InvalidMessage for any other address, and unless exactly one of both is given.
    """
    if bool(queue) == bool(exchange or routing_key):
        raise InvalidMessage("redirection: give a queue, or an exchange and a routing key")
    targets = redirect_targets(settings)
    if queue:
        if queue not in targets:
            raise InvalidMessage(f"queue {queue[:80]!r}: expected one of {', '.join(targets)}")
        return retry_policies(settings).by_queue[queue].replay_address(queue, queue)
    topology = declared_topology(all_queues(settings), [events_exchange])
    if not any(each in targets for each, _ in routed_queues(topology, exchange, routing_key)):
        raise InvalidMessage(
            f"exchange {exchange[:80]!r} with key {routing_key[:80]!r}: no queue for redirections gets such a message; "
            f"exchanges are {', '.join(sorted(topology.exchanges))}"
        )
    return Address(exchange, routing_key)


# Notes


def add_note(ops: OperatorContext, letter_id: str, text: str) -> list[Note]:
    """Add a note about a letter and return all. Raises InvalidMessage for an empty or long text, and StoreError."""
    cleaned = text.strip()
    if not 1 <= len(cleaned) <= MAX_NOTE:
        raise InvalidMessage(f"note: expected 1 to {MAX_NOTE} characters, not {len(cleaned)}")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    note = Note(at=now, operator=ops.operator.name, text=cleaned)

    key = _notes_key(letter_id)

    def added(stored: StoredObject | None) -> tuple[list[Note], bytes]:
        kept = [*(decoded_if_intact(ops.store, key, stored, _notes_in) or ()), note][-MAX_NOTES:]
        return kept, json.dumps([asdict(each) for each in kept]).encode()

    with ops.act("note", letter_id) as act:
        act.result = cleaned
        return update_object(ops.store, key, added)


def notes_of(ops: OperatorContext, letter_id: str) -> list[Note]:
    """Return the notes about a letter, the oldest first; none where they are damaged. Raises StoreError."""
    return read_if_intact(ops.store, _notes_key(letter_id), _notes_in) or []


def _notes_key(letter_id: str) -> str:
    return f"{NOTES_PREFIX}{letter_id}.json"


def _notes_in(key: str, data: bytes) -> list[Note]:
    del key
    with parsing("notes of a dead letter", data):
        return _NOTES.validate_json(data)
