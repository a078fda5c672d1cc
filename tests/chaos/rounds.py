"""One round: crawls of generated sites, the planned faults, and the ledger when the system is at rest."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from tests.chaos.faults import FAULTS, Fault, Moment
from tests.chaos.ledger import Effect, Ledger, Remains, Violation, duplicates, violations
from tests.chaos.records import AWAY, Observer, PackWatch, watched_packs
from tests.chaos.schedule import PlannedFault, RoundPlan
from tests.chaos.sites import Get, SitePlan, plan_site, served
from tests.chaos.system import System

#: Seconds from the healing until a round that does not come to rest is over.
PATIENCE = 90.0
#: Seconds without anything left to do after which nothing more will happen. Building a pack takes less.
REST = 10.0
#: Seconds between two looks at the system.
PAUSE = 0.3


@dataclass(frozen=True, slots=True)
class Extent:
    """The size of a round."""

    sites: int = 3
    pages: int = 40


@dataclass(frozen=True, slots=True)
class RoundResult:
    """The outcome of a round. Times are in seconds.

    `recovery` is the time to the next page fetched: from a momentary fault, or from the healing of one that lasts.
    It is missing if every page was fetched before. `logs` are the last log lines of a round with violations.
    """

    plan: RoundPlan
    violations: tuple[Violation, ...]
    duplicates: Counter[Effect]
    recovery: float | None
    seconds: float
    logs: str = ""


def run_round(system: System, plan: RoundPlan, extent: Extent, folder: Path) -> RoundResult:
    """Run a round and return its outcome. The sites' ports are new ones, so a round knows its own records."""
    began, ended_before = time.monotonic(), len(system.keeper.ended)
    plans = [plan_site(f"{plan.seed}:{number}", pages=extent.pages) for number in range(extent.sites)]
    journal: list[Get] = []
    with (
        served(plans, journal) as sites,
        closing(Observer(system, sites)) as observer,
        watched_packs(system, list(sites), folder) as packs,
    ):
        for domain in sites:
            system.post_crawl(f"http://{domain}/")
        since = _come_over(system, plan, sites, journal)
        ledger = Ledger(sites=sites, repeatable=repeatable_effects(plan))
        ledger = _ledger_at_rest(system, observer, packs, ledger, journal, ended_before)
        _heal(system, [each for each in plan.faults if FAULTS[each.name].stays])
    found = violations(ledger)
    return RoundResult(
        plan=plan,
        violations=tuple(found),
        duplicates=duplicates(ledger),
        recovery=recovery(journal, since),
        seconds=time.monotonic() - began,
        logs=system.logs() if found else "",
    )


def repeatable_effects(plan: RoundPlan) -> frozenset[Effect]:
    """Return the effects that the faults of a round may repeat."""
    return frozenset[Effect]().union(*(FAULTS[each.name].repeats for each in plan.faults))


def recovery(gets: Sequence[Get], since: float) -> float | None:
    """Return the seconds from `since` to the next request for a page, None without one."""
    return min((each.at - since for each in gets if each.at > since), default=None)


def _come_over(system: System, plan: RoundPlan, sites: dict[str, SitePlan], journal: list[Get]) -> float:
    """Let the faults come at their moment, and heal those that do not stay.

    Return when the last one came, or was healed if it lasts: in seconds of the monotonic clock.
    """
    deadline, pause = time.monotonic() + PATIENCE, threading.Event()
    # After the deadline the ledger shows what is missing.
    while not _is_reached(system, plan.moment, sites, journal) and time.monotonic() < deadline:
        pause.wait(0.005)
    for planned in plan.faults:
        FAULTS[planned.name].inject(system, random.Random(planned.seed))
    since = time.monotonic()
    for planned in sorted(plan.faults, key=lambda each: each.seconds):
        if FAULTS[planned.name].stays:
            continue
        pause.wait(max(0.0, since + planned.seconds - time.monotonic()))
        _heal(system, [planned])
    lasting = any(_lasts(FAULTS[each.name]) for each in plan.faults)
    return time.monotonic() if lasting else since


def _is_reached(system: System, moment: Moment, sites: dict[str, SitePlan], journal: list[Get]) -> bool:
    if isinstance(moment, float):
        fetched = {(get.domain, get.path) for get in list(journal) if get.status == 200}
        return len(fetched) >= moment * sum(len(site.fetchable) for site in sites.values())
    return system.is_packing(sites)


def _lasts(fault: Fault) -> bool:
    return fault.seconds[1] > 0


def _heal(system: System, faults: Sequence[PlannedFault]) -> None:
    for planned in faults:
        FAULTS[planned.name].heal(system, random.Random(planned.seed))


def _ledger_at_rest(
    system: System,
    observer: Observer,
    packs: PackWatch,
    ledger: Ledger,
    journal: list[Get],
    ended_before: int,
) -> Ledger:
    """Complete the ledger once no rule is violated, nothing has been left to do for REST seconds, or time is up."""
    deadline, pause = time.monotonic() + PATIENCE, threading.Event()
    rest_since: float | None = None
    while True:
        late = time.monotonic() > deadline
        try:
            remains = observer.remains(packs.records, system.keeper.ended[ended_before:])
            rest_since = (rest_since or time.monotonic()) if at_rest(remains) else None
            resting = rest_since is not None and time.monotonic() - rest_since > REST
            if rest_since or late:
                complete = replace(
                    ledger,
                    gets=tuple(journal),
                    packs=tuple(packs.records),
                    remains=remains,
                    letters=observer.letters(),
                    stored=observer.stored(),
                )
                if late or resting or not violations(complete):
                    return complete
        except AWAY:
            # A part of the system is still away. If that does not end, the harness itself fails.
            if late:
                raise
        pause.wait(PAUSE)


def at_rest(remains: Remains) -> bool:
    """Return whether nothing is left to do, whatever has been done."""
    return not (remains.timers or any(remains.open_messages.values()) or any(remains.queued.values()))
