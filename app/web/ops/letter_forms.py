"""What forms, addresses and JSON bodies say about dead letters: which ones, and what is done with them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Final, Self, cast, get_args
from urllib.parse import parse_qsl

from pydantic import AfterValidator, Field, model_validator

from app.broker.dead_letters import DeadSets, IdsBySet, LetterSummary, ReplayChanges, ReplayOptions
from app.broker.errors import InvalidMessage
from app.broker.headers import ReplayBudget
from app.operations.context import OperatorContext
from app.operations.letter_queries import LetterQuery
from app.operations.letters import LetterOrder, Verb, redirect_address
from app.operations.long_acts import LongActs
from app.web.ops.requests import ActBody, StrictBody, Visit
from config.settings import Settings

#: What names a letter: its dead set and its id.
_REF: Final = re.compile(r"(?P<set>[^/]{1,255})/(?P<id>[0-9A-Za-z.-]{8,80})")
#: Seconds to wait for the outcome of a canary, unless an operator chooses others.
CANARY_SECONDS: Final = 60.0


def _each_once(ids: list[str]) -> list[str]:
    return list(dict.fromkeys(ids))


class LetterChoice(ActBody):
    """The letters of an act: `ids`, or else all that `filters` match; an empty object matches all."""

    ids: Annotated[list[Annotated[str, Field(max_length=400)]], AfterValidator(_each_once)] = Field(
        [], max_length=5_000, description="Dead set, slash and id of each.", examples=[["site.dead/1d6a0f0e"]]
    )
    filters: LetterQuery | None = Field(None, description="Filters as in the list's parameters.")
    dry_run: bool = Field(False, description="Only list the letters.")

    @model_validator(mode="after")
    def _has_one_of_both(self) -> Self:
        if bool(self.ids) == (self.filters is not None):
            raise ValueError("give `ids`, or `filters`; an empty object of filters matches all")
        return self

    def __str__(self) -> str:
        """Name the letters for the audit."""
        if self.filters is not None:
            return str(self.filters)
        return self.ids[0] if len(self.ids) == 1 else f"{len(self.ids)} chosen letters"

    def by_set(self, ops: OperatorContext) -> IdsBySet:
        """Return the ids. Of filters they are read from the dead sets; raises DeadSetBusy and BrokerUnreachable."""
        if self.filters is not None:
            refs = ((letter.set, letter.id) for letter in matching(ops, self.filters))
        else:
            refs = (parse_ref(ref, ops.dead_sets) for ref in self.ids)
        ids: dict[str, list[str]] = {}
        for name, ident in refs:
            ids.setdefault(name, []).append(ident)
        return ids

    def letters(self, ops: OperatorContext) -> Iterator[LetterSummary]:
        """Yield those of the letters that are there."""
        if self.filters is not None:
            return matching(ops, self.filters)
        ids = {(name, ident) for name, listed in self.by_set(ops).items() for ident in listed}
        return ops.dead_sets.iter_summaries(lambda letter: (letter.set, letter.id) in ids)


class Redirection(StrictBody):
    """Another address: a queue, or an exchange and a routing key."""

    queue: str = Field("", max_length=255, examples=["site.crawl"])
    exchange: str = Field("", max_length=255)
    routing_key: str = Field("", max_length=255)


class ReplayFields(StrictBody):
    """How letters are replayed."""

    budget: ReplayBudget | None = Field(None, description="The retry budget; null is the default of the policy.")
    rate: float | None = Field(None, gt=0, le=100_000, description="Letters a second.")
    canary: float | None = Field(None, ge=0.1, le=3_600, description="Seconds to wait for the outcome of a canary.")
    again: bool = Field(False, description="Send also what an interrupted replay may have sent.")

    def order(
        self,
        verb: Verb,
        settings: Settings,
        *,
        to: Redirection | None = None,
        body: str | None = None,
        content_type: str | None = None,
    ) -> LetterOrder:
        """Return the order; raises InvalidMessage for an unknown address."""
        address = redirect_address(settings, **to.model_dump()) if to else None
        options: dict[str, Any] = {name: getattr(self, name) for name in ReplayFields.model_fields}
        changes = ReplayChanges(body=body, content_type=content_type, address=address)
        return LetterOrder(verb=verb, options=ReplayOptions(**options, changes=changes))


def matching(ops: OperatorContext, query: LetterQuery) -> Iterator[LetterSummary]:
    """Yield what matches a query. Raises InvalidMessage, DeadSetBusy and BrokerUnreachable."""
    chosen = LongActs(ops).ids(query.act, chosen=True) if query.act else {}
    return query.matching(ops.dead_sets, of_act={ident for ids in chosen.values() for ident in ids})


def parse_ref(ref: str, sets: DeadSets) -> tuple[str, str]:
    """Return dead set and id; raises InvalidMessage for what names no letter."""
    match = _REF.fullmatch(ref)
    if match is None:
        raise InvalidMessage(f"letter {ref[:80]!r}: expected a dead set, a slash and an id")
    sets.only(match["set"])
    return match["set"], match["id"]


def chosen_by(visit: Visit) -> LetterChoice:
    """Return what a form chooses: its `letter` fields, or with the scope `all` what its `query` matches.

    The scope `marked-or-all` of a cause's page is `all` without `letter` fields.
    """
    scope, refs = visit.value("scope"), visit.form.get("letter", ())
    if scope == "all" or (scope == "marked-or-all" and not refs):
        try:
            filters = dict(parse_qsl(visit.value("query"), max_num_fields=50))
        except ValueError as error:
            raise InvalidMessage(f"the query cannot be read: {error}") from None
        return visit.read(LetterChoice, filters=filters)
    if not refs:
        raise InvalidMessage("no letter is chosen: mark some, or choose all that match")
    return visit.read(LetterChoice, ids=refs)


def letter_order(visit: Visit, verb: str, *, body: str | None = None, content_type: str | None = None) -> LetterOrder:
    """Return what a form orders; raises InvalidMessage, which names the field."""
    if verb not in get_args(Verb):
        raise InvalidMessage(f"act {verb[:40]!r}: expected one of {', '.join(get_args(Verb))}")
    if verb == "drop":
        return LetterOrder(verb="drop")
    canary = (visit.value("wait") or CANARY_SECONDS) if visit.value("canary") else None
    address = visit.read(Redirection)
    is_elsewhere = verb == "redirect" or (verb == "edit" and any(address.model_dump().values()))
    return visit.read(ReplayFields, canary=canary).order(
        cast(Verb, verb),
        visit.ops.settings,
        to=address if is_elsewhere else None,
        body=body,
        content_type=content_type,
    )
