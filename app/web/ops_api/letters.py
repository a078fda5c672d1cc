"""The operators' API: dead letters, acts on them, and how far an act is."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from pydantic import Field

from app.broker.dead_letters.exports import to_record
from app.broker.errors import InvalidMessage
from app.broker.headers import ReplayBudget
from app.operations.letter_attempts import attempts_of
from app.operations.letter_queries import LetterQuery, row_of, survey
from app.operations.letters import (
    MAX_NOTE,
    LetterOrder,
    Note,
    Verb,
    add_note,
    edited_body,
    find_letter,
    notes_of,
)
from app.operations.long_acts import LongAct, LongActs, Steering
from app.operations.operations import Operations
from app.web.ops.letter_forms import ChosenLetters, matching
from app.web.ops_api.callers import ActBody, Calling, StrictBody, answer
from config.settings import Settings

#: Letters of one answer.
_MAX_LIMIT = 1_000


class LettersParameters(LetterQuery):
    """Query parameters of a list of dead letters."""

    offset: int = Field(0, ge=0, le=1_000_000, description="Letters to leave out at the beginning.")
    limit: int = Field(50, ge=1, le=_MAX_LIMIT, description="Letters to answer with, at most.")


class LetterChoice(ActBody):
    """The letters of an act: `ids`, or else all that `filters` match; an empty object matches all."""

    ids: list[Annotated[str, Field(max_length=400)]] = Field(
        [], max_length=5_000, description="Dead set, slash and id of each.", examples=[["site.dead/1d6a0f0e"]]
    )
    filters: LetterQuery | None = Field(None, description="Filters as in the list's parameters.")
    dry_run: bool = Field(False, description="Only list the letters.")

    def chosen(self) -> ChosenLetters:
        """Return the letters; raises InvalidMessage unless exactly one of ids and filters is given."""
        if bool(self.ids) == (self.filters is not None):
            raise InvalidMessage("give `ids`, or `filters`; an empty object of filters matches all")
        return ChosenLetters(tuple(self.ids), self.filters or LetterQuery())


class ReplayFields(StrictBody):
    """How letters are replayed."""

    budget: ReplayBudget | None = Field(None, description="The retry budget; null is the default of the policy.")
    rate: float | None = Field(None, gt=0, le=100_000, description="Letters a second.")
    canary: float | None = Field(None, ge=0.1, le=3_600, description="Seconds to wait for the outcome of a canary.")
    again: bool = Field(False, description="Send also what an interrupted replay may have sent.")

    def order(self, verb: Verb, settings: Settings, address: Redirection | None = None) -> LetterOrder:
        """Return the order; raises InvalidMessage for an unknown address."""
        order = LetterOrder(verb=verb, budget=self.budget, rate=self.rate, canary=self.canary, again=self.again)
        return order.redirected(settings, **address.model_dump()) if address else order


class Redirection(StrictBody):
    """Another address: a queue, or an exchange and a routing key."""

    queue: str = Field("", max_length=255, examples=["site.crawl"])
    exchange: str = Field("", max_length=255)
    routing_key: str = Field("", max_length=255)


class ReplayRequest(LetterChoice, ReplayFields):
    """Replay letters."""


class RedirectRequest(LetterChoice, ReplayFields):
    """Replay letters to another address."""

    to: Redirection


class EditRequest(ActBody, ReplayFields):
    """Replay a letter with other arguments."""

    arguments: str = Field(max_length=1_000_000, description="As the letter's `arguments`: JSON, or a text.")
    content_type: str | None = Field(None, max_length=127)
    to: Redirection | None = None


class NoteRequest(StrictBody):
    """Add a note."""

    text: str = Field(min_length=1, max_length=MAX_NOTE)


Ident = Annotated[str, Path(max_length=80, description="An id, or the beginning of one.")]
ActIdent = Annotated[str, Path(max_length=80, description="The id of an act.")]
_Json = dict[str, Any]


router = APIRouter()


@router.get("/dead/groups", response_model=list[_Json], operation_id="dead_groups")
def list_groups(ops: Calling, parameters: Annotated[LetterQuery, Query()]) -> Response:
    """List the causes of dead letters, the newest first, each with a count by hour of the last day."""
    found = survey(matching(ops, parameters), offset=0, limit=0)
    return answer([group.as_json() for group in found.groups])


@router.get("/dead/letters", response_model=_Json, operation_id="dead_letters")
def list_letters(ops: Calling, parameters: Annotated[LettersParameters, Query()]) -> Response:
    """List dead letters, the newest first."""
    found = survey(matching(ops, parameters), offset=parameters.offset, limit=parameters.limit)
    return answer({"total": found.total, "letters": found.rows})


@router.get("/dead/letters/{ident}", response_model=_Json, operation_id="dead_letter")
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


@router.post("/dead/replay", response_model=_Json, operation_id="replay_letters")
def replay_letters(ops: Calling, request: ReplayRequest) -> Response:
    """Begin a replay and return the act."""
    return _begin(ops, request, request.order("replay", ops.settings))


@router.post("/dead/redirect", response_model=_Json, operation_id="redirect_letters")
def redirect_letters(ops: Calling, request: RedirectRequest) -> Response:
    """Begin a replay to another address and return the act."""
    return _begin(ops, request, request.order("redirect", ops.settings, request.to))


@router.post("/dead/drop", response_model=_Json, operation_id="drop_letters")
def drop_letters(ops: Calling, request: LetterChoice) -> Response:
    """Begin to export letters to a file and remove them, and return the act."""
    return _begin(ops, request, LetterOrder(verb="drop"))


@router.post("/dead/letters/{ident}/edit", response_model=_Json, operation_id="edit_letter")
def edit_letter(ops: Calling, ident: Ident, request: EditRequest) -> Response:
    """Replay a letter with other arguments, and to another address if one is given; return the act."""
    letter = find_letter(ops.dead_sets, ident)
    body = edited_body(letter, request.arguments)
    order = replace(request.order("edit", ops.settings, request.to), body=body, content_type=request.content_type)
    subject = f"{letter.set}/{letter.id}"
    return _answer(LongActs(ops).begin(order, {letter.set: [letter.id]}, subject=subject, why=request.why))


@router.post("/dead/letters/{ident}/notes", response_model=list[Note], operation_id="note_letter")
def note_letter(ops: Calling, ident: Ident, request: NoteRequest) -> Response:
    """Add a note about a letter and return all."""
    return answer(add_note(ops, find_letter(ops.dead_sets, ident).id, request.text))


@router.get("/acts", response_model=list[_Json], operation_id="acts")
def list_acts(ops: Calling) -> Response:
    """List the latest acts on dead letters."""
    return answer([_described(act) for act in LongActs(ops).recent(50)])


@router.get("/acts/{ident}", response_model=_Json, operation_id="act")
def show_act(ops: Calling, ident: ActIdent) -> Response:
    """Return how far an act is."""
    return _answer(LongActs(ops).read(ident))


@router.post("/acts/{ident}/{do}", response_model=_Json, operation_id="steer_act")
def steer_act(ops: Calling, ident: ActIdent, do: Steering, request: ActBody) -> Response:
    """Pause, resume or cancel an act. It is paused or cancelled after its present batch."""
    return _answer(LongActs(ops).steer(ident, do, why=request.why))


def _begin(ops: Operations, request: LetterChoice, order: LetterOrder) -> Response:
    chosen = request.chosen()
    if request.dry_run:
        found = survey(chosen.letters(ops), offset=0, limit=_MAX_LIMIT)
        return answer({"dry_run": True, "total": found.total, "letters": found.rows})
    return _answer(LongActs(ops).begin(order, chosen.by_set(ops), subject=str(chosen), why=request.why))


def _answer(act: LongAct) -> Response:
    return answer(_described(act))


def _described(act: LongAct) -> _Json:
    return asdict(act) | {"running": act.is_running, "can_resume": act.can_resume}
