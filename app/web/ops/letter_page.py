"""The page of one dead letter: what it holds, its attempts, notes, and forms to edit it and to act on it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse

from app.broker.dead_letters import DeadLetter
from app.broker.dead_letters.exports import readable
from app.broker.errors import ApplicationError, InvalidMessage
from app.coverart.jobs import Move, parse
from app.errors import ResourceNotFound
from app.operations.letter_attempts import Attempt, attempts_of, broker_deaths
from app.operations.letter_queries import row_of
from app.operations.letters import add_note, editable, edited_body, find_letter, is_editable, known_queues, notes_of
from app.operations.long_acts import LongActs
from app.web.middleware import OPS_PAGES
from app.web.ops.letter_forms import order_by, parse_ref
from app.web.ops.visits import Acting, Reading
from config.settings import Settings

router = APIRouter()

#: Characters of a header's value, and of arguments, that the page shows. Longer arguments cannot be edited on it.
_MAX_HEADER: Final = 4_000
_MAX_ARGUMENTS: Final = 200_000
#: Width of the drawing of the attempts.
_WIDTH: Final = 600.0


@router.get("/dead/letter/{ident}", response_class=HTMLResponse)
def show_letter(visit: Reading, ident: str) -> HTMLResponse:
    """Show a letter."""
    settings = visit.ops.settings
    try:
        letter = find_letter(visit.ops.dead_sets, ident)
    except InvalidMessage as error:
        raise ResourceNotFound(f"{error}: it was replayed or dropped, or an act works on it now") from error
    attempts = attempts_of(letter, settings)
    text = editable(letter)
    return visit.page(
        "dead_letter.html",
        letter=letter,
        row=row_of(letter),
        in_doubt=visit.ops.dead_sets.is_in_doubt(letter),
        subject=_subject(letter, settings),
        attempts=attempts,
        marks=_marks(attempts),
        width=_WIDTH,
        broker_deaths=broker_deaths(letter),
        headers=[(name, _shown(value)) for name, value in sorted(readable(letter.delivery.headers).items())],
        properties=[(name, _shown(value)) for name, value in _properties(letter).items()],
        arguments=text[:_MAX_ARGUMENTS],
        is_cut=len(text) > _MAX_ARGUMENTS,
        is_editable=len(text) <= _MAX_ARGUMENTS and is_editable(letter),
        notes=notes_of(visit.ops, letter.id),
        known_queues=known_queues(settings),
    )


@router.post("/dead/edit")
def edit_letter(visit: Acting) -> Response:
    """Replay a letter with other arguments, and to another address if one is given."""
    sets = visit.ops.dead_sets
    name, ident = parse_ref(visit.value("letter"), sets)
    order = order_by(visit, "edit")
    letter = find_letter(sets.only(name), ident)
    # Spaces around a body of text may have a meaning.
    given = next(iter(visit.form.get("arguments", ())), "")
    body = edited_body(letter, given)
    content_type = visit.value("content_type")
    if content_type == (letter.delivery.content_type or ""):
        content_type = ""
    order = replace(order, body=body, content_type=content_type or None)
    act = LongActs(visit.ops).begin(order, {name: [letter.id]}, subject=f"{name}/{letter.id}", why=visit.value("why"))
    return visit.back(f"{OPS_PAGES}/acts/{act.id}")


@router.post("/dead/note")
def note_letter(visit: Acting) -> Response:
    """Add a note about a letter."""
    _, ident = parse_ref(visit.value("letter"), visit.ops.dead_sets)
    add_note(visit.ops, ident, visit.value("text"))
    return visit.back(f"{OPS_PAGES}/dead/letter/{ident}", "The note is kept.")


@dataclass(frozen=True, slots=True)
class AttemptMark:
    """Where a drawing shows an attempt."""

    x: float
    attempt: Attempt


def _marks(attempts: list[Attempt]) -> list[AttemptMark]:
    """Return the marks of the attempts with a known time, from the left to the right."""
    timed = [(attempt.at, attempt) for attempt in attempts if attempt.at is not None]
    if not timed:
        return []
    first = min(at for at, _ in timed)
    span = max(at for at, _ in timed) - first or 1.0
    return [AttemptMark(10 + (_WIDTH - 20) * (at - first) / span, attempt) for at, attempt in timed]


def _subject(letter: DeadLetter, settings: Settings) -> tuple[str, str]:
    """Return what a letter is about: the address of a page and a name; both empty where it is unknown."""
    if domain := row_of(letter).domain:
        return f"{OPS_PAGES}/sites/{domain}", domain
    exchange, _, kind = letter.queue.rpartition(".")
    if exchange in settings.art_exchanges:
        with suppress(ApplicationError):
            job = parse(kind, letter.delivery.body)
            return f"{OPS_PAGES}/art", job.new_gid if isinstance(job, Move) else job.gid
    return "", ""


def _properties(letter: DeadLetter) -> Mapping[str, Any]:
    delivery = letter.delivery
    own = {name: value for name, value in delivery.properties.items() if name != "application_headers"}
    return {
        "exchange": delivery.exchange or "(default)",
        "routing key": delivery.routing_key,
        "content type": delivery.content_type or "",
        "content encoding": delivery.content_encoding or "",
        **readable(own),
    }


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_HEADER else f"{text[:_MAX_HEADER]}… ({len(text):,} characters)"
