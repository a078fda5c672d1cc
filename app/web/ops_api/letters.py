"""The operators' API: dead letters, acts on them, and how far an act is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from app.broker.dead_letters.exports import to_record
from app.broker.errors import ApplicationError, BrokerUnreachable, DeadSetBusy, InvalidMessage, Overloaded
from app.broker.headers import ReplayBudget
from app.errors import (
    BodyRefused,
    OperatorRequired,
    RequestForged,
    ResourceNotFound,
    SearchUnavailable,
    StoreError,
    TooManySearches,
    UriTooLong,
)
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
    redirection,
)
from app.operations.long_acts import LongAct, LongActs
from app.operations.operations import Operations
from app.web.api import describe_errors
from app.web.middleware import OPS_API
from app.web.ops.letter_forms import ChosenLetters, LetterParameters, matching
from app.web.ops_api.callers import Calling, answer
from config.settings import Settings

#: Letters of one answer.
_MAX_LIMIT = 1_000

_ERRORS = describe_errors(
    *(InvalidMessage, BodyRefused, UriTooLong, OperatorRequired, RequestForged, ResourceNotFound, TooManySearches),
    *(ApplicationError, Overloaded, DeadSetBusy, SearchUnavailable, BrokerUnreachable, StoreError),
)

router = APIRouter(prefix=OPS_API, responses=_ERRORS)


class LettersParameters(LetterParameters):
    """Query parameters of a list of dead letters."""

    offset: int = Field(0, ge=0, le=1_000_000, description="Letters to leave out at the beginning.")
    limit: int = Field(50, ge=1, le=_MAX_LIMIT, description="Letters to answer with, at most.")


class StrictDocument(BaseModel):
    """A JSON body. An unknown field is refused: it may be a mistyped filter."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LetterChoice(StrictDocument):
    """The letters of an act: `ids`, or else all that `filters` match; an empty object matches all."""

    ids: list[Annotated[str, Field(max_length=400)]] = Field(
        [], max_length=5_000, description="Dead set, slash and id of each.", examples=[["site.dead/1d6a0f0e"]]
    )
    filters: LetterParameters | None = Field(None, description="Filters as in the list's parameters.")
    why: str = Field("", max_length=500, description="The reason, for the audit.")
    dry_run: bool = Field(False, description="Only list the letters.")

    def chosen(self) -> ChosenLetters:
        """Return the letters; raises InvalidMessage unless exactly one of ids and filters is given."""
        if bool(self.ids) == (self.filters is not None):
            raise InvalidMessage("give `ids`, or `filters`; an empty object of filters matches all")
        return ChosenLetters(tuple(self.ids), self.filters.query() if self.filters else LetterQuery())


class ReplayOptions(StrictDocument):
    """How letters are replayed."""

    budget: ReplayBudget | None = Field(None, description="The retry budget; null is the default of the policy.")
    rate: float | None = Field(None, gt=0, le=100_000, description="Letters a second.")
    canary: float | None = Field(None, ge=0.1, le=3_600, description="Seconds to wait for the outcome of a canary.")
    again: bool = Field(False, description="Send also what an interrupted replay may have sent.")

    def order(self, verb: Verb, settings: Settings, address: Redirection | None = None) -> LetterOrder:
        """Return the order; raises InvalidMessage for an unknown address."""
        order = LetterOrder(verb=verb, budget=self.budget, rate=self.rate, canary=self.canary, again=self.again)
        if address is None:
            return order
        found = redirection(settings, queue=address.queue, exchange=address.exchange, routing_key=address.routing_key)
        return replace(order, exchange=found.exchange, routing_key=found.routing_key)


class Redirection(StrictDocument):
    """Another address: a queue, or an exchange and a routing key."""

    queue: str = Field("", max_length=255, examples=["site.crawl"])
    exchange: str = Field("", max_length=255)
    routing_key: str = Field("", max_length=255)


class ReplayRequest(LetterChoice, ReplayOptions):
    """Replay letters."""


class RedirectRequest(LetterChoice, ReplayOptions):
    """Replay letters to another address."""

    to: Redirection


class EditRequest(ReplayOptions):
    """Replay a letter with other arguments."""

    arguments: str = Field(max_length=1_000_000, description="As the letter's `arguments`: JSON, or a text.")
    content_type: str | None = Field(None, max_length=127)
    to: Redirection | None = None
    why: str = Field("", max_length=500, description="The reason, for the audit.")


class NoteRequest(StrictDocument):
    """Add a note."""

    text: str = Field(min_length=1, max_length=MAX_NOTE)


class SteerRequest(StrictDocument):
    """Steer an act."""

    why: str = Field("", max_length=500, description="The reason, for the audit.")


Ident = Annotated[str, Path(max_length=80, description="An id, or the beginning of one.")]
ActIdent = Annotated[str, Path(max_length=80, description="The id of an act.")]
_Json = dict[str, Any]


@router.get("/dead/groups", response_model=list[_Json], operation_id="dead_groups")
async def list_groups(ops: Calling, parameters: Annotated[LetterParameters, Query()]) -> Response:
    """List the causes of dead letters, the newest first, each with a count by hour of the last day."""

    def found() -> list[_Json]:
        return [group.as_json() for group in survey(matching(ops, parameters.query()), offset=0, limit=0).groups]

    return await answer(found)


@router.get("/dead/letters", response_model=_Json, operation_id="dead_letters")
async def list_letters(ops: Calling, parameters: Annotated[LettersParameters, Query()]) -> Response:
    """List dead letters, the newest first."""

    def found() -> _Json:
        listed = survey(matching(ops, parameters.query()), offset=parameters.offset, limit=parameters.limit)
        return {"total": listed.total, "letters": [asdict(row) for row in listed.rows]}

    return await answer(found)


@router.get("/dead/letters/{ident}", response_model=_Json, operation_id="dead_letter")
async def show_letter(ops: Calling, ident: Ident) -> Response:
    """Return a dead letter: its export, error, attempts, notes, and whether an interrupted replay may have sent it."""

    def found() -> _Json:
        sets = ops.dead_sets
        letter = find_letter(sets, ident)
        return {
            **asdict(row_of(letter)),
            "in_doubt": sets[letter.set].is_in_doubt(letter.id),
            "arguments": letter.arguments(),
            "traceback": letter.traceback,
            "attempts_in_time": [asdict(each) for each in attempts_of(letter, ops.settings)],
            "replay_history": letter.replay_history,
            "changes": letter.changes,
            "notes": [asdict(note) for note in notes_of(ops, letter.id)],
            "record": to_record(letter),
        }

    return await answer(found)


@router.post("/dead/replay", response_model=_Json, operation_id="replay_letters")
async def replay_letters(ops: Calling, request: ReplayRequest) -> Response:
    """Begin a replay and return the act."""
    return await answer(lambda: _begin(ops, request, request.order("replay", ops.settings)))


@router.post("/dead/redirect", response_model=_Json, operation_id="redirect_letters")
async def redirect_letters(ops: Calling, request: RedirectRequest) -> Response:
    """Begin a replay to another address and return the act."""
    return await answer(lambda: _begin(ops, request, request.order("redirect", ops.settings, request.to)))


@router.post("/dead/drop", response_model=_Json, operation_id="drop_letters")
async def drop_letters(ops: Calling, request: LetterChoice) -> Response:
    """Begin to export letters to a file and remove them, and return the act."""
    return await answer(lambda: _begin(ops, request, LetterOrder(verb="drop")))


@router.post("/dead/letters/{ident}/edit", response_model=_Json, operation_id="edit_letter")
async def edit_letter(ops: Calling, ident: Ident, request: EditRequest) -> Response:
    """Replay a letter with other arguments, and to another address if one is given; return the act."""

    def edited() -> _Json:
        letter = find_letter(ops.dead_sets, ident)
        body = edited_body(letter, request.arguments)
        order = replace(request.order("edit", ops.settings, request.to), body=body, content_type=request.content_type)
        subject = f"{letter.set}/{letter.id}"
        return described(LongActs(ops).begin(order, {letter.set: [letter.id]}, subject=subject, why=request.why))

    return await answer(edited)


@router.post("/dead/letters/{ident}/notes", response_model=list[Note], operation_id="note_letter")
async def note_letter(ops: Calling, ident: Ident, request: NoteRequest) -> Response:
    """Add a note about a letter and return all."""

    def noted() -> list[_Json]:
        letter = find_letter(ops.dead_sets, ident)
        return [asdict(note) for note in add_note(ops, letter.id, request.text)]

    return await answer(noted)


@router.get("/acts", response_model=list[_Json], operation_id="acts")
async def list_acts(ops: Calling) -> Response:
    """List the latest acts on dead letters."""
    return await answer(lambda: [described(act) for act in LongActs(ops).recent(50)])


@router.get("/acts/{ident}", response_model=_Json, operation_id="act")
async def show_act(ops: Calling, ident: ActIdent) -> Response:
    """Return how far an act is."""
    return await answer(lambda: described(LongActs(ops).read(ident)))


@router.post("/acts/{ident}/{do}", response_model=_Json, operation_id="steer_act")
async def steer_act(
    ops: Calling, ident: ActIdent, do: Literal["pause", "resume", "cancel"], request: SteerRequest
) -> Response:
    """Pause, resume or cancel an act. It is paused or cancelled after its present batch."""
    acts = LongActs(ops)
    steer: dict[str, Callable[[], LongAct]] = {
        "pause": lambda: acts.steer(ident, "paused", why=request.why),
        "cancel": lambda: acts.steer(ident, "cancelled", why=request.why),
        "resume": lambda: acts.resume(ident, why=request.why),
    }
    return await answer(lambda: described(steer[do]()))


def described(act: LongAct) -> _Json:
    """Return an act as JSON."""
    return asdict(act) | {"running": act.is_running, "can_resume": act.can_resume}


def _begin(ops: Operations, request: LetterChoice, order: LetterOrder) -> _Json:
    chosen = request.chosen()
    if request.dry_run:
        found = survey(chosen.letters(ops), offset=0, limit=_MAX_LIMIT)
        return {"dry_run": True, "total": found.total, "letters": [asdict(row) for row in found.rows]}
    act = LongActs(ops).begin(order, chosen.by_set(ops), subject=str(chosen), why=request.why)
    return described(act)
