"""One dead letter: what it holds, its attempts, notes, and acts that edit it and add a note."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any, Final

from fastapi import Path, Response
from fastapi.responses import HTMLResponse
from pydantic import Field

from app.broker.dead_letters import DeadLetter
from app.broker.dead_letters.exports import readable, to_record
from app.broker.errors import ApplicationError
from app.coverart.jobs import Move, parse
from app.operations.letter_queries import Attempt, attempts_of, broker_deaths, row_of
from app.operations.letters import (
    MAX_NOTE,
    Note,
    add_note,
    editable,
    edited_body,
    find_letter,
    is_editable,
    notes_of,
    redirect_targets,
)
from app.operations.long_acts import LongActs
from app.web.ops.acts import as_json
from app.web.ops.letter_forms import Redirection, ReplayFields, letter_order, parse_ref
from app.web.ops.requests import ActBody, Acting, Calling, Done, Reading, StrictBody, Subject, answer
from app.web.ops.site_page import site_path
from app.web.paths import OPS_PAGES
from config.settings import Settings

subject = Subject()

Ident = Annotated[str, Path(max_length=80, description="An id, or the beginning of one.")]

#: Characters of a header's value, and of arguments, that the page shows. Longer arguments cannot be edited on it.
_MAX_HEADER: Final = 4_000
_MAX_ARGUMENTS: Final = 200_000
#: Width of the drawing of the attempts.
_WIDTH: Final = 600.0


class EditRequest(ActBody, ReplayFields):
    """Replay a letter with other arguments."""

    arguments: str = Field(max_length=1_000_000, description="As the letter's `arguments`: JSON, or a text.")
    content_type: str | None = Field(None, max_length=127)
    to: Redirection | None = None


class NoteRequest(StrictBody):
    """Add a note."""

    text: str = Field(min_length=1, max_length=MAX_NOTE)


@subject.pages.get("/dead/letter/{ident}", response_class=HTMLResponse)
def show(visit: Reading, ident: str) -> HTMLResponse:
    """Show a letter."""
    settings = visit.ops.settings
    letter = find_letter(visit.ops.dead_sets, ident)
    attempts = attempts_of(letter, settings)
    text = editable(letter)
    delivery = letter.delivery
    properties = {
        "exchange": delivery.exchange or "(default)",
        "routing key": delivery.routing_key,
        "content type": delivery.content_type or "",
        "content encoding": delivery.content_encoding or "",
        **readable({name: value for name, value in delivery.properties.items() if name != "application_headers"}),
    }
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
        headers=[(name, _shown(value)) for name, value in sorted(readable(delivery.headers).items())],
        properties=[(name, _shown(value)) for name, value in properties.items()],
        arguments=text[:_MAX_ARGUMENTS],
        is_cut=len(text) > _MAX_ARGUMENTS,
        is_editable=len(text) <= _MAX_ARGUMENTS and is_editable(letter),
        notes=notes_of(visit.ops, letter.id),
        redirect_targets=redirect_targets(settings),
    )


@subject.pages.post("/dead/edit")
def edit(visit: Acting) -> Response:
    """Replay a letter with other arguments, and to another address if one is given."""
    sets = visit.ops.dead_sets
    name, ident = parse_ref(visit.value("letter"), sets)
    letter = find_letter(sets.only(name), ident)
    # Spaces around a body of text may have a meaning.
    given = next(iter(visit.form.get("arguments", ())), "")
    body = edited_body(letter, given)
    content_type = visit.value("content_type")
    if content_type == (letter.delivery.content_type or ""):
        content_type = ""
    order = letter_order(visit, "edit", body=body, content_type=content_type or None)
    act = LongActs(visit.ops).begin(order, {name: [letter.id]}, subject=f"{name}/{letter.id}", why=visit.value("why"))
    return visit.back(f"{OPS_PAGES}/acts/{act.id}")


@subject.api.get("/dead/letters/{ident}", response_model=dict[str, Any], operation_id="dead_letter")
def show_letter(ops: Calling, ident: Ident) -> Response:
    """Return a dead letter: its export, error, attempts, notes, and whether an interrupted replay may have sent it."""
    sets = ops.dead_sets
    letter = find_letter(sets, ident)
    return answer(
        {
            **asdict(row_of(letter)),
            "in_doubt": sets.is_in_doubt(letter),
            "arguments": letter.arguments(),
            "traceback": letter.traceback,
            "attempts_in_time": attempts_of(letter, ops.settings),
            "replay_history": letter.replay_history,
            "changes": letter.changes,
            "notes": notes_of(ops, letter.id),
            "record": to_record(letter),
        }
    )


@subject.api.post("/dead/letters/{ident}/edit", response_model=dict[str, Any], operation_id="edit_letter")
def edit_letter(ops: Calling, ident: Ident, request: EditRequest) -> Response:
    """Replay a letter with other arguments, and to another address if one is given; return the act."""
    letter = find_letter(ops.dead_sets, ident)
    body = edited_body(letter, request.arguments)
    order = request.order("edit", ops.settings, to=request.to, body=body, content_type=request.content_type)
    subject = f"{letter.set}/{letter.id}"
    act = LongActs(ops).begin(order, {letter.set: [letter.id]}, subject=subject, why=request.why)
    return answer(as_json(act))


@subject.act("/dead/letters/{ident}/notes", response_model=list[Note], operation_id="note_letter")
def note_letter(ops: Calling, ident: Ident, body: NoteRequest) -> Done:
    """Add a note about a letter and return all."""
    letter = find_letter(ops.dead_sets, ident)
    return Done(add_note(ops, letter.id, body.text), f"{OPS_PAGES}/dead/letter/{letter.id}", "The note is kept.")


def _marks(attempts: list[Attempt]) -> list[tuple[float, Attempt]]:
    """Return the attempts with a known time, each with its place in the drawing, from the left to the right."""
    timed = [(attempt.at, attempt) for attempt in attempts if attempt.at is not None]
    if not timed:
        return []
    first = min(at for at, _ in timed)
    span = max(at for at, _ in timed) - first or 1.0
    return [(10 + (_WIDTH - 20) * (at - first) / span, attempt) for at, attempt in timed]


def _subject(letter: DeadLetter, settings: Settings) -> tuple[str, str]:
    """Return what a letter is about: the address of a page and a name; both empty where it is unknown."""
    if domain := row_of(letter).domain:
        return site_path(domain), domain
    exchange, _, kind = letter.queue.rpartition(".")
    if exchange in settings.art_exchanges:
        with suppress(ApplicationError):
            job = parse(kind, letter.delivery.body)
            return f"{OPS_PAGES}/art", job.new_gid if isinstance(job, Move) else job.gid
    return "", ""


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_HEADER else f"{text[:_MAX_HEADER]}… ({len(text):,} characters)"
