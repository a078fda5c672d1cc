"""What forms and addresses say about dead letters: which ones, and what is done with them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, get_args
from urllib.parse import parse_qsl

from pydantic import ValidationError

from app.broker.dead_letters import DeadSets, LetterSummary
from app.broker.errors import InvalidMessage
from app.broker.headers import ReplayBudget
from app.operations.letter_queries import LetterQuery
from app.operations.letters import IdsBySet, LetterOrder, Verb
from app.operations.long_acts import LongActs
from app.operations.operations import Operations
from app.web.ops.visits import Visit

#: What names a letter: its dead set and its id.
_REF: Final = re.compile(r"(?P<set>[^/]{1,255})/(?P<id>[0-9A-Za-z.-]{8,80})")
#: Seconds to wait for the outcome of a canary, unless an operator chooses others.
CANARY_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class ChosenLetters:
    """The letters that a form is about: `refs` name them, or else the query does."""

    refs: tuple[str, ...]
    query: LetterQuery

    def __str__(self) -> str:
        """Name them for the audit."""
        if len(self.refs) == 1:
            return self.refs[0]
        return f"{len(self.refs)} chosen letters" if self.refs else str(self.query)

    def by_set(self, ops: Operations) -> IdsBySet:
        """Return the ids. Of a query they are read from the dead sets; raises DeadSetBusy and BrokerUnreachable."""
        ids: dict[str, list[str]] = {}
        if not self.refs:
            for letter in matching(ops, self.query):
                ids.setdefault(letter.set, []).append(letter.id)
            return ids
        for ref in self.refs:
            name, ident = parse_ref(ref, ops.dead_sets)
            ids.setdefault(name, []).append(ident)
        return ids

    def letters(self, ops: Operations) -> Iterator[LetterSummary]:
        """Yield those of the letters that are there."""
        if not self.refs:
            return matching(ops, self.query)
        ids = {(name, ident) for name, listed in self.by_set(ops).items() for ident in listed}
        return ops.dead_sets.iter_summaries(lambda letter: (letter.set, letter.id) in ids)


def matching(ops: Operations, query: LetterQuery) -> Iterator[LetterSummary]:
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


def chosen_by(visit: Visit) -> ChosenLetters:
    """Return what a form chooses: its `letter` fields, or with the scope `all` what its `query` matches.

    The scope `marked-or-all` of a cause's page is `all` without `letter` fields.
    """
    scope = visit.value("scope")
    if scope == "all" or (scope == "marked-or-all" and "letter" not in visit.form):
        pairs = dict(parse_qsl(visit.value("query"), max_num_fields=50))
        try:
            return ChosenLetters((), LetterQuery(**pairs))
        except ValidationError as error:
            raise InvalidMessage(f"query: {error.errors()[0]['msg']}") from None
    refs = tuple(dict.fromkeys(visit.form.get("letter", ())))
    if not refs:
        raise InvalidMessage("no letter is chosen: mark some, or choose all that match")
    return ChosenLetters(refs, LetterQuery())


def order_by(visit: Visit, verb: str) -> LetterOrder:
    """Return what a form orders; raises InvalidMessage, which names the field."""
    if verb not in get_args(Verb):
        raise InvalidMessage(f"act {verb[:40]!r}: expected one of {', '.join(get_args(Verb))}")
    if verb == "drop":
        return LetterOrder(verb="drop")
    budget = visit.value("budget")
    if budget not in ("", *get_args(ReplayBudget)):
        raise InvalidMessage(f"budget {budget[:40]!r}: expected keep or fresh, or nothing")
    rate = visit.number("rate", default=0.0)
    canary = visit.number("wait", default=CANARY_SECONDS, least=0.1) if visit.value("canary") else None
    order = LetterOrder(
        verb=verb,  # type: ignore[arg-type]
        budget=budget or None,  # type: ignore[arg-type]
        rate=rate or None,
        canary=canary,
        again=bool(visit.value("again")),
    )
    address = {name: visit.value(name) for name in ("queue", "exchange", "routing_key")}
    if verb == "redirect" or (verb == "edit" and any(address.values())):
        return order.redirected(visit.ops.settings, **address)
    return order
