"""One round: crawls of generated sites, the planned faults, and the ledger when the system is at rest."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.faults import FAULTS, Moment
from tests.chaos.ledger import Effect, Ledger, Remains, Violation, duplicates, violations
from tests.chaos.records import AWAY, Observer, PackWatch, watched_packs
from tests.chaos.schedule import PlannedFault, RoundPlan
from tests.chaos.sites import Get, SitePlan, plan_sites, served
from tests.chaos.system import System

#: Seconds without any progress after which a round is over: a site that goes on later is late.
PATIENCE = 60.0
#: Seconds after which a round is over, whatever progress it makes.
LONGEST = 600.0
#: Seconds without anything left to do after which nothing more will happen. Building a pack takes less.
REST = 10.0
#: Seconds between two looks at the system.
PAUSE = 0.3


@dataclass(frozen=True, slots=True)
class Extent:
    """The size of a round: its sites, and the pages of a site with a delay."""

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
    began, journal = time.monotonic(), list[Get]()
    pages = max(extent.pages, *(FAULTS[each.name].pages for each in plan.faults))
    plans = plan_sites(plan.seed, number=extent.sites, pages=pages)
    with (
        served(plans, journal, named=plan.store == "names") as sites,
        closing(Observer(system, sites)) as observer,
        watched_packs(system, list(sites), folder) as packs,
    ):
        observer.start()
        running = _Round(system, plan, sites, journal, observer, packs, ended_before=len(system.keeper.ended))
        for domain in sites:
            system.post_crawl(f"http://{domain}/")
        running.await_moment()
        since = running.bring_faults()
        ledger = running.ledger_at_rest()
        running.heal_those_that_stay()
    found = violations(ledger)
    return RoundResult(
        plan=plan,
        violations=tuple(found),
        duplicates=duplicates(ledger),
        recovery=recovery(journal, since),
        seconds=time.monotonic() - began,
        logs=system.logs() if found else "",
    )


@dataclass(frozen=True, slots=True)
class _Round:
    """A round that is running. `ended_before` is the number of processes that had ended by themselves before it."""

    system: System
    plan: RoundPlan
    sites: Mapping[str, SitePlan]
    journal: list[Get]
    observer: Observer
    packs: PackWatch
    ended_before: int

    def await_moment(self) -> None:
        """Wait for the moment of the faults, but not forever: the ledger shows what is missing."""
        deadline, pause = time.monotonic() + LONGEST / 2, threading.Event()
        while not self._is_reached(self.plan.moment) and time.monotonic() < deadline:
            pause.wait(0.005)

    def bring_faults(self) -> float:
        """Inject the faults, and heal those that do not stay; return the monotonic time that recovery counts from."""
        for planned in self.plan.faults:
            FAULTS[planned.name].inject(self.system, random.Random(planned.seed))
        since, pause = time.monotonic(), threading.Event()
        for planned in sorted(self.plan.faults, key=lambda each: each.seconds):
            if not FAULTS[planned.name].stays:
                pause.wait(max(0.0, since + planned.seconds - time.monotonic()))
                self._heal(planned)
        lasting = any(FAULTS[each.name].seconds[1] for each in self.plan.faults)
        return time.monotonic() if lasting else since

    def heal_those_that_stay(self) -> None:
        """Heal the faults that last as long as their round."""
        for planned in self.plan.faults:
            if FAULTS[planned.name].stays:
                self._heal(planned)

    def ledger_at_rest(self) -> Ledger:
        """Return the ledger once no rule is violated, nothing has been left to do for REST seconds, or time is up."""
        began, pause = time.monotonic(), threading.Event()
        rest_since: float | None = None
        progress_at, progress = began, self._progress()
        while True:
            if self._progress() != progress:
                progress_at, progress = time.monotonic(), self._progress()
            late = time.monotonic() > min(progress_at + PATIENCE, began + LONGEST)
            try:
                remains = self.observer.remains(self.packs.records, self.system.keeper.ended[self.ended_before :])
                rest_since = (rest_since or time.monotonic()) if at_rest(remains) else None
                rested = rest_since is not None and time.monotonic() - rest_since > REST
                if rest_since or late:
                    ledger = self._ledger(remains)
                    if late or rested or not violations(ledger):
                        return ledger
            except AWAY:
                # A service is still starting. If that does not end, the harness itself has failed.
                if late:
                    raise
            pause.wait(PAUSE)

    def _progress(self) -> tuple[int, int]:
        """Return numbers that grow while the system works on the round: requests served and packs written."""
        return len(self.journal), len(self.packs.records)

    def _ledger(self, remains: Remains) -> Ledger:
        return Ledger(
            sites=self.sites,
            gets=tuple(self.journal),
            stored=self.observer.stored(),
            packs=tuple(self.packs.records),
            letters=self.observer.letters(),
            remains=remains,
            repeatable=repeatable_effects(self.plan),
        )

    def _is_reached(self, moment: Moment) -> bool:
        if isinstance(moment, float):
            fetched = {(get.domain, get.path) for get in list(self.journal) if get.status == 200}
            return len(fetched) >= moment * sum(len(site.fetchable) for site in self.sites.values())
        return self.system.is_packing(self.sites)

    def _heal(self, planned: PlannedFault) -> None:
        FAULTS[planned.name].heal(self.system, random.Random(planned.seed))


def repeatable_effects(plan: RoundPlan) -> frozenset[Effect]:
    """Return the effects that the faults of a round may repeat."""
    return frozenset[Effect]().union(*(FAULTS[each.name].repeats for each in plan.faults))


def recovery(gets: Sequence[Get], since: float) -> float | None:
    """Return the seconds from `since` to the next request for a page, None without one."""
    return min((each.at - since for each in gets if each.at > since), default=None)


def at_rest(remains: Remains) -> bool:
    """Return whether nothing is left to do, whatever has been done."""
    return not (remains.timers or any(remains.open_messages.values()) or any(remains.queued.values()))
