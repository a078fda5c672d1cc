"""From a seed to rounds: which faults, at which point of the crawl, and how long they last."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from tests.chaos.faults import Fault, Moment
from tests.chaos.system import StoreKind

#: The name of rounds with two faults at once.
MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault of a round: it lasts for `seconds`, and `seed` decides its further choices."""

    name: str
    seconds: float
    seed: str


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """One round, whose faults come at `moment`. `row` is its row of the report."""

    row: str
    seed: str
    store: StoreKind
    moment: Moment
    faults: tuple[PlannedFault, ...]


def plan_rounds(seed: int, rows: Sequence[str], faults: Mapping[str, Fault], *, rounds: int) -> list[RoundPlan]:
    """Return `rounds` rounds of each row: of a fault by its name, or MIXED. The same arguments give the same rounds.

    Rounds of one kind of store follow each other, because another store needs another system.
    """
    plans = [_plan_round(f"{seed}:{row}:{number}", row, faults) for row in rows for number in range(rounds)]
    stores = list(dict.fromkeys(plan.store for plan in plans))
    return sorted(plans, key=lambda plan: stores.index(plan.store))


def _plan_round(seed: str, row: str, faults: Mapping[str, Fault]) -> RoundPlan:
    chance = random.Random(seed)
    chosen = chance.choice(mixable_pairs(faults)) if row == MIXED else (faults[row],)
    return RoundPlan(
        row=row,
        seed=seed,
        store=next((fault.store for fault in chosen if fault.store != "folder"), "folder"),
        moment=chance.choice(chosen[0].moments),
        faults=tuple(
            PlannedFault(fault.name, round(chance.uniform(*fault.seconds), 1), f"{seed}:{fault.name}")
            for fault in chosen
        ),
    )


def mixable_pairs(faults: Mapping[str, Fault]) -> list[tuple[Fault, Fault]]:
    """Return the pairs of faults that can come at once: of different targets, on one kind of store."""
    pairs = combinations([fault for fault in faults.values() if fault.mixable], 2)
    return [
        (one, two)
        for one, two in pairs
        if one.target != two.target and ("folder" in (one.store, two.store) or one.store == two.store)
    ]
