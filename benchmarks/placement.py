"""What it costs the orchestrator to place the packs of many sites, and to place one update: a part of row `growth`."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from app.cluster.orchestrator.state import OrchestratorState
from app.cluster.placement.model import AddressedOrder, Pack
from app.cluster.protocol import OrderOutcome, PackVersion, SearcherReport, read, to_json, to_payload
from benchmarks.figures import Aim, FigureTable, at_most, bullets

#: Searchers. Each pack has one copy.
SEARCHERS = 2
#: Seconds between two decisions, on the orchestrator's clock.
STEP = 0.05
#: Aims for the largest size: MB of outcomes, seconds of CPU, and ms of a decision after one update.
MB_AIM, CPU_AIM, UPDATE_AIM = 5.0, 5.0, 2.0

METHOD = bullets(
    f"""Placement: the orchestrator's state in one process, without a broker. {SEARCHERS} empty searchers load
    packs of 1 MB, and each order is answered by the JSON of its outcome. The CPU time has the searchers' encoding,
    the orchestrator's decoding, and all decisions. *One update* is the decision after one pack has changed."""
)


@dataclass(frozen=True, slots=True)
class PlacementRun:
    """One size: bytes of outcomes, CPU seconds to place all packs, CPU ms of one update, bytes of all routes.

    `changes` are the bytes of the routes that changed by the update.
    """

    packs: int
    sent: int
    cpu: float
    update: float
    routes: int
    changes: int


@dataclass(slots=True)
class _Searcher:
    """A searcher that executes each order at once."""

    name: str
    held: dict[str, PackVersion] = field(default_factory=dict)
    reports: int = 0

    def report(self) -> SearcherReport:
        self.reports += 1
        used = len(self.held)
        return SearcherReport(
            searcher_id=self.name, seq=self.reports, changes=used, free_space=100_000 - used, capacity=100_000
        )

    def execute(self, addressed: AddressedOrder, packs: dict[str, Pack]) -> bytes:
        pack = packs[addressed.order.domain]
        held = PackVersion(domain=pack.domain, sha256=pack.sha256, generation=pack.generation, size_mb=pack.size_mb)
        self.held[pack.domain] = held
        outcome = OrderOutcome(report=self.report(), domain=pack.domain, sha256=pack.sha256, held=held)
        return json.dumps({"type": "loaded", **to_payload(outcome)}).encode()


def run(sizes: Sequence[int]) -> list[PlacementRun]:
    """Measure each size."""
    log = logging.getLogger("app.cluster")
    level, log.level = log.level, logging.ERROR
    try:
        return [measured(size) for size in sizes]
    finally:
        log.setLevel(level)


def measured(size: int) -> PlacementRun:
    """Place `size` packs on empty searchers, then one update."""
    domains = [f"site-{number:05}.example" for number in range(size)]
    packs = {domain: Pack(domain=domain, sha256=f"{domain:0>64}", generation=1, size_mb=1) for domain in domains}
    searchers = {name: _Searcher(name) for name in (f"{number:036}" for number in range(SEARCHERS))}
    state = OrchestratorState(replicas=1, heartbeat=2.0, now=0.0)
    for pack in packs.values():
        state.pack_updated(pack)
    for name in searchers:
        state.receive_report(
            SearcherReport(searcher_id=name, seq=0, changes=0, free_space=100_000, capacity=100_000, pack_versions=()),
            now=0.0,
        )
    state.begin_placing()
    sent, now, began = 0, 0.0, time.process_time()
    while orders := state.tick(now=(now := now + STEP)):
        for addressed in orders:
            body = searchers[addressed.searcher_id].execute(addressed, packs)
            sent += len(body)
            state.receive_outcome(read(OrderOutcome, body), now=now)
    cpu = time.process_time() - began
    routes = state.routes(now=now)
    state.pack_updated(replace(packs[domains[size // 2]], sha256="1" * 64, generation=2))
    began = time.process_time()
    state.tick(now=now + STEP)
    update = (time.process_time() - began) * 1_000
    changes = state.routes(routes.request(), now=now)
    return PlacementRun(size, sent, cpu, update, len(to_json(routes)), len(to_json(changes)))


def aims(largest: PlacementRun) -> tuple[Aim, ...]:
    """Return the aims of the largest size."""
    packs = f"{largest.packs:,} packs"
    return (
        at_most(f"MB of outcomes, {packs}", MB_AIM, largest.sent / 1e6, digits=1),
        at_most(f"CPU s to place all, {packs}", CPU_AIM, largest.cpu, digits=1),
        at_most(f"CPU ms of one update, {packs}", UPDATE_AIM, largest.update, digits=1),
    )


def table(runs: Sequence[PlacementRun]) -> FigureTable:
    """Return what each size costs."""
    rows = {
        "bytes of outcomes a pack": [f"{run.sent / run.packs:.0f}" for run in runs],
        "CPU ms of one update": [f"{run.update:.1f}" for run in runs],
        "kB of `get_routes`": [f"{run.routes / 1_000:.0f}" for run in runs],
        "the same, changes by one update": [f"{run.changes / 1_000:.1f}" for run in runs],
    }
    return FigureTable.of_figures("Placing the packs of many sites", (f"{run.packs:,} packs" for run in runs), rows)
