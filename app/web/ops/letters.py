"""Dead letters: groups and lists, and acts on many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import Query, Response
from fastapi.responses import HTMLResponse
from pydantic import Field

from app.broker.dead_letters import LetterSummary
from app.broker.errors import DeadSetBusy
from app.broker.policies.base import RetryPolicies
from app.operations.context import OperatorContext
from app.operations.letter_queries import LetterQuery, survey
from app.operations.letters import LetterOrder, redirect_targets
from app.operations.long_acts import LongActs
from app.topology.retry_policies import retry_policies
from app.web.ops.acts import as_json
from app.web.ops.letter_forms import (
    LetterChoice,
    Redirection,
    ReplayFields,
    chosen_by,
    letter_order,
    matching,
)
from app.web.ops.requests import Acting, Calling, Reading, Subject, answer
from app.web.paths import OPS_PAGES

subject = Subject()

#: Letters of one page, and the last page. All letters are read for each page.
PER_PAGE: Final = 50
_LAST_PAGE: Final = 2_000
#: Letters of one answer.
_MOST_LETTERS: Final = 1_000
#: Fields of a form that its preview sends again.
_FIELDS: Final = (*ReplayFields.model_fields, *Redirection.model_fields, "wait", "why", "scope", "query")


class LettersParameters(LetterQuery):
    """Query parameters of a list of dead letters."""

    offset: int = Field(0, ge=0, le=1_000_000, description="Letters to leave out at the beginning.")
    limit: int = Field(50, ge=1, le=_MOST_LETTERS, description="Letters to answer with, at most.")


class ReplayRequest(LetterChoice, ReplayFields):
    """Replay letters."""


class RedirectRequest(LetterChoice, ReplayFields):
    """Replay letters to another address."""

    to: Redirection


class PagedLetters(LetterQuery):
    """Query parameters of the list."""

    page: int = Field(1, ge=1, le=_LAST_PAGE, description="The page of the list.")


@subject.pages.get("/dead", response_class=HTMLResponse)
def show_letters(visit: Reading, query: Annotated[PagedLetters, Query()]) -> HTMLResponse:
    """Show the groups and the newest letters that match."""
    sets, page = visit.ops.dead_sets, query.page
    acts = LongActs(visit.ops).recent(5)
    try:
        found = survey(matching(visit.ops, query), offset=(page - 1) * PER_PAGE, limit=PER_PAGE)
    except DeadSetBusy as error:
        return visit.page("dead_busy.html", status=503, detail=str(error), acts=acts)
    return visit.page(
        "dead.html",
        query=query,
        query_text=urlencode(query.given(), errors="replace"),
        found=found,
        previous_page=query.address(f"{OPS_PAGES}/dead", page=page - 1) if page > 1 else "",
        next_page=query.address(f"{OPS_PAGES}/dead", page=page + 1) if page * PER_PAGE < found.total else "",
        first_row=(page - 1) * PER_PAGE + 1,
        set_names=sets.names,
        redirect_targets=redirect_targets(visit.ops.settings),
        acts=acts,
    )


@subject.pages.post("/dead/acts")
def act_on_letters(visit: Acting) -> Response:
    """Begin an act on the chosen letters and open its page; show what it would do with `dry`, or before a drop."""
    verb = visit.value("verb")
    is_dry = verb.startswith("dry-") or (verb == "drop" and not visit.value("confirmed"))
    order, chosen = letter_order(visit, verb.removeprefix("dry-")), chosen_by(visit)
    if not is_dry:
        ids = chosen.by_set(visit.ops)
        act = LongActs(visit.ops).begin(order, ids, subject=str(chosen), why=visit.value("why"))
        return visit.back(f"{OPS_PAGES}/acts/{act.id}")
    targets: Counter[str] = Counter()
    policies = retry_policies(visit.ops.settings)

    def counted() -> Iterator[LetterSummary]:
        for letter in chosen.letters(visit.ops):
            targets[replay_address(policies, order, letter)] += 1
            yield letter

    found = survey(counted(), offset=0, limit=PER_PAGE)
    return visit.page(
        "dead_preview.html",
        order=order,
        chosen=chosen,
        found=found,
        targets=targets.most_common(20) if order.verb != "drop" else [],
        fields=[(name, value) for name in _FIELDS if (value := visit.value(name))],
    )


def replay_address(policies: RetryPolicies, order: LetterOrder, letter: LetterSummary) -> str:
    """Return in words where an order sends a letter."""
    key, address = letter.routing_key, order.options.changes.address
    if address is None:
        address = policies.policy_for(letter.queue).replay_address(letter.queue or key, key)
    return f"exchange {address.exchange or '(default)'}, key {address.routing_key}"


@subject.api.get("/dead/groups", response_model=list[dict[str, Any]], operation_id="dead_groups")
def list_groups(ops: Calling, parameters: Annotated[LetterQuery, Query()]) -> Response:
    """List the causes of dead letters, the newest first, each with a count by hour of the last day."""
    found = survey(matching(ops, parameters), offset=0, limit=0)
    return answer([group.as_json() for group in found.groups])


@subject.api.get("/dead/letters", response_model=dict[str, Any], operation_id="dead_letters")
def list_letters(ops: Calling, parameters: Annotated[LettersParameters, Query()]) -> Response:
    """List dead letters, the newest first."""
    found = survey(matching(ops, parameters), offset=parameters.offset, limit=parameters.limit)
    return answer({"total": found.total, "letters": found.rows})


@subject.api.post("/dead/replay", response_model=dict[str, Any], operation_id="replay_letters")
def replay_letters(ops: Calling, request: ReplayRequest) -> Response:
    """Begin a replay and return the act."""
    return _begin(ops, request, request.order("replay", ops.settings))


@subject.api.post("/dead/redirect", response_model=dict[str, Any], operation_id="redirect_letters")
def redirect_letters(ops: Calling, request: RedirectRequest) -> Response:
    """Begin a replay to another address and return the act."""
    return _begin(ops, request, request.order("redirect", ops.settings, to=request.to))


@subject.api.post("/dead/drop", response_model=dict[str, Any], operation_id="drop_letters")
def drop_letters(ops: Calling, request: LetterChoice) -> Response:
    """Begin to export letters to a file and remove them, and return the act."""
    return _begin(ops, request, LetterOrder(verb="drop"))


def _begin(ops: OperatorContext, request: LetterChoice, order: LetterOrder) -> Response:
    if request.dry_run:
        found = survey(request.letters(ops), offset=0, limit=_MOST_LETTERS)
        return answer({"dry_run": True, "total": found.total, "letters": found.rows})
    act = LongActs(ops).begin(order, request.by_set(ops), subject=str(request), why=request.why)
    return answer(as_json(act))
