"""Searchers, packs and messages come, go and get lost: no order does harm, and in the end every pack is placed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.cluster.orchestrator.state import OrchestratorState
from app.cluster.placement.copies import Copies
from app.cluster.placement.model import AddressedOrder, ClusterState, Pack, Placement
from app.cluster.placement.place import place
from app.cluster.protocol import Load, OrderOutcome, PackVersion, Routes, SearcherReport, Unload
from tests.packs import version_of

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _every_decision_is_as_if_all_packs_were_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def place_and_compare(state: ClusterState, copies: Copies) -> Placement:
        placement = place(state, copies)
        assert placement == place(state)
        return placement

    monkeypatch.setattr("app.cluster.orchestrator.state.place", place_and_compare)
    # So that an example need not wait for ten minutes of backoff at its end, half of them twice.
    monkeypatch.setattr("app.cluster.orchestrator.searcher_record.LONGEST_BACKOFF", 30.0)


#: Seconds between heartbeats, and between two ticks; orders that were not taken after three heartbeats expire.
BEAT, STEP, EXPIRY = 2.0, 0.5, 6.0
REPLICAS = 2
DOMAINS = ("p.example", "q.example", "r.example", "s.example")
CAPACITIES = (40, 100, 100, 200)
sizes = st.integers(1, 60)
seeds = st.integers(0, 2**16)


@dataclass
class FakeSearcher:
    """A searcher that executes its orders as far as it can."""

    name: str
    capacity: int
    held: dict[str, PackVersion] = field(default_factory=dict)
    jobs: list[Load | Unload] = field(default_factory=list)
    inbox: list[tuple[float, Load | Unload]] = field(default_factory=list)
    seq: int = 0
    changes: int = 0
    beat_at: float = 0.0
    lost: int = 0
    leaving: bool = False

    @property
    def free(self) -> int:
        return max(0, self.capacity - sum(each.size_mb for each in self.held.values()))

    def heartbeat(self) -> SearcherReport:
        self.seq += 1
        return SearcherReport(
            searcher_id=self.name,
            seq=self.seq,
            changes=self.changes,
            free_space=self.free,
            capacity=self.capacity,
            leaving=self.leaving,
            loading=tuple(job.sha256 for job in self.jobs if isinstance(job, Load)),
        )

    def registration(self) -> SearcherReport:
        return replace(self.heartbeat(), pack_versions=tuple(self.held.values()))

    def outcome(self, job: Load | Unload, reason: str) -> OrderOutcome:
        report, held = replace(self.heartbeat(), loading=None), self.held.get(job.domain)
        return OrderOutcome(report=report, domain=job.domain, sha256=job.sha256, reason=reason, held=held)

    def hold(self, domain: str, version: PackVersion | None) -> None:
        self.changes += 1
        self.held.pop(domain, None)
        if version is not None:
            self.held[domain] = version


class World(RuleBasedStateMachine):
    """A store, searchers and a broker that delays, reorders and loses, around the orchestrator."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.store: dict[str, Pack] = {}
        self.nodes: dict[str, FakeSearcher] = {}
        self.mail: list[Callable[[], None]] = []
        self.reports: dict[str, SearcherReport] = {}
        #: Orders without an outcome: the order, the version held when it was sent, and the time.
        self.outstanding: dict[tuple[str, str], tuple[Load | Unload, str, float]] = {}
        self.writes = self.born = 0
        self.sent = 0
        self.orchestrator = self._begin()
        #: What two clients have that request changes: one after each tick, one now and then.
        self.followed: list[Routes | None] = [None, None]

    def _begin(self) -> OrchestratorState:
        found = OrchestratorState(replicas=REPLICAS, heartbeat=BEAT, now=self.now)
        for pack in self.store.values():
            found.pack_updated(pack)
        return found

    # What happens.

    @initialize(capacities=st.lists(st.sampled_from(CAPACITIES), max_size=3), written=st.lists(sizes, max_size=4))
    def something_is_there(self, capacities: list[int], written: list[int]) -> None:
        for capacity in capacities:
            self._come(capacity)
        for domain, size in zip(DOMAINS, written, strict=False):
            self._write(domain, size)
        self.orchestrator = self._begin()

    @rule(capacity=st.sampled_from(CAPACITIES), seed=seeds)
    @precondition(lambda self: len(self.nodes) < 4)
    def a_searcher_comes(self, capacity: int, seed: int) -> None:
        self._come(capacity)
        self._pass(seed)

    def _come(self, capacity: int) -> None:
        self.born += 1
        node = self.nodes[f"n{self.born}"] = FakeSearcher(f"n{self.born}", capacity, beat_at=self.now)
        self._say(self._registration(node))

    @rule(data=st.data(), leaving=st.booleans(), seed=seeds)
    @precondition(lambda self: self.nodes)
    def a_searcher_goes(self, data: st.DataObject, leaving: bool, seed: int) -> None:
        node = self.nodes.pop(data.draw(st.sampled_from(sorted(self.nodes))))
        if leaving:
            node.leaving = True
            self._say(self._registration(node))
        self._pass(seed)

    @rule(domain=st.sampled_from(DOMAINS), size=sizes, announced=st.booleans(), seed=seeds)
    def a_pack_is_written(self, domain: str, size: int, announced: bool, seed: int) -> None:
        self._write(domain, size)
        if announced:
            self._say(lambda: self._read_pack(domain))
        self._pass(seed)

    def _write(self, domain: str, size: int) -> None:
        self.writes += 1
        generation = self.store[domain].generation + 1 if domain in self.store else 1
        sha256 = f"{self.writes}:{domain}:{generation}"
        self.store[domain] = Pack(domain=domain, sha256=sha256, generation=generation, size_mb=size)

    @rule(domain=st.sampled_from(DOMAINS), announced=st.booleans(), seed=seeds)
    def a_pack_is_deleted(self, domain: str, announced: bool, seed: int) -> None:
        self.store.pop(domain, None)
        if announced:
            self._say(lambda: self._read_pack(domain))
        self._pass(seed)

    @rule(seed=seeds)
    def the_store_is_looked_at(self, seed: int) -> None:
        self._look_at_all()
        self._pass(seed)

    @rule(seed=seeds)
    def the_orchestrator_is_restarted(self, seed: int) -> None:
        self.orchestrator = self._begin()
        self.outstanding.clear()
        self.reports.clear()
        for node in self.nodes.values():
            self._say(self._registration(node))
        self._pass(seed)

    @rule()
    def a_client_requests_changes(self) -> None:
        self._follow(1)

    def _follow(self, client: int) -> None:
        before = self.followed[client]
        full = self.orchestrator.routes(now=self.now)
        records = self.orchestrator._registry.records
        for route in full.routes:
            serving = {name for name, record in records.items() if record.serves(route.domain)}
            assert set(route.searchers) == serving, "a change was not noted"
        if before is None:
            self.followed[client] = full
            return
        reply = self.orchestrator.routes(before.request(), now=self.now)
        assert (reply.since is not None) == (before.orchestrator == full.orchestrator)
        changed = {route for route in full.routes if before.by_domain.get(route.domain) != route}
        assert reply.since is None or set(reply.routes) >= changed
        self.followed[client] = before.updated(reply)
        assert self.followed[client] == full

    @rule(seed=seeds)
    def time_passes(self, seed: int) -> None:
        self._pass(seed)
        self._pass(seed + 1)

    def _pass(self, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(chance.randint(0, 8)):
            self._step(chance)

    def _look_at_all(self) -> None:
        for domain in sorted(self.orchestrator.domains() | self.orchestrator.unclear_domains() | set(self.store)):
            self._read_pack(domain)

    # How it happens.

    def _step(self, chance: random.Random | None = None, *, seconds: float = STEP) -> None:
        """Let some time pass; without `chance`, everything arrives in its order and is done at once."""
        self.now += seconds
        for node in self.nodes.values():
            if self.now >= node.beat_at:
                node.beat_at += BEAT
                self._beat(node, chance)
            self._work(node, chance)
        self._deliver(chance)
        if not self.orchestrator.ready and (chance is None or chance.random() < 0.5):
            self.orchestrator.begin_placing()
        self._tick()

    def _deliver(self, chance: random.Random | None) -> None:
        if chance:
            chance.shuffle(self.mail)
        arrives = self.mail[: chance.randint(0, len(self.mail))] if chance else self.mail[:]
        self.mail = self.mail[len(arrives) :]
        for message in arrives:
            if not happens(chance, 0.1):
                message()
            if happens(chance, 0.1):
                self.mail.append(message)

    def _beat(self, node: FakeSearcher, chance: random.Random | None) -> None:
        # Two in a row may be lost; three would mean that it is gone.
        if node.lost < 2 and happens(chance, 0.2):
            node.lost += 1
        else:
            node.lost = 0
            self._say(self._report(node.heartbeat()), late=happens(chance, 0.2))

    def _work(self, node: FakeSearcher, chance: random.Random | None) -> None:
        if node.held and happens(chance, 0.03):
            # The pack was corrupt, and the message about it is lost.
            node.hold(min(node.held), None)
        while node.inbox and not happens(chance, 0.3):
            given, order = node.inbox.pop(0)
            if self.now - given < EXPIRY and not happens(chance, 0.1):
                node.jobs.append(order)
        while node.jobs and not happens(chance, 0.5):
            job = node.jobs.pop(0)
            reason = "no reason" if happens(chance, 0.1) else self._do(node, job)
            self._say(self._end(node, job, reason))

    def _do(self, node: FakeSearcher, job: Load | Unload) -> str:
        """Carry an order out; return why it failed."""
        held = node.held.get(job.domain)
        if isinstance(job, Unload):
            if held is not None and held.sha256 == job.sha256:
                node.hold(job.domain, None)
            return ""
        there = self.store.get(job.domain)
        if there is None or there.generation < job.generation:
            return "it is not there"
        if held is not None and held.sha256 == there.sha256:
            return ""
        if there.size_mb > node.free:
            return "no room"
        node.hold(job.domain, version_of(there))
        return ""

    def _say(self, message: Callable[[], None], *, late: bool = True) -> None:
        if late:
            self.mail.append(message)
        else:
            message()

    def _registration(self, node: FakeSearcher) -> Callable[[], None]:
        return self._report(node.registration())

    def _report(self, report: SearcherReport) -> Callable[[], None]:
        def arrives() -> None:
            self.orchestrator.receive_report(report, now=self.now)
            self._note(report)

        return arrives

    def _end(self, node: FakeSearcher, job: Load | Unload, reason: str) -> Callable[[], None]:
        outcome = node.outcome(job, reason)

        def arrives() -> None:
            self.outstanding.pop((node.name, job.domain), None)
            self.orchestrator.receive_outcome(outcome, now=self.now)
            self._note(outcome.report)

        return arrives

    def _note(self, report: SearcherReport) -> None:
        if report.searcher_id not in self.orchestrator._registry.records:
            return  # A report that comes before a registration is only noted as missing.
        last = self.reports.get(report.searcher_id)
        if last is None or report.seq > last.seq:
            self.reports[report.searcher_id] = report
        held = self._recorded_packs(report.searcher_id)
        for (name, domain), (order, before, _at) in list(self.outstanding.items()):
            now = held.get(domain, "")
            ended = now not in ("", before) if isinstance(order, Load) else now != order.sha256
            if name == report.searcher_id and ended:
                del self.outstanding[name, domain]

    def _recorded_packs(self, name: str) -> dict[str, str]:
        """Return what the orchestrator believes a searcher to hold: checksums by domain."""
        record = self.orchestrator._registry.records.get(name)
        return {each.domain: each.sha256 for each in record.versions()} if record else {}

    def _read_pack(self, domain: str) -> None:
        if domain in self.store:
            self.orchestrator.pack_updated(self.store[domain])
        else:
            self.orchestrator.pack_deleted(domain)

    def _tick(self) -> None:
        before = self.orchestrator.routes(now=self.now)
        orders = self.orchestrator.tick(now=self.now)
        self._follow(0)
        if orders:
            after = self.orchestrator.routes(now=self.now)
            there, left = {node.searcher_id for node in after.searchers}, _answering(after)
            for domain, searchers in _answering(before).items():
                assert left.get(domain, True) or not searchers & there, f"the last copy of {domain} goes"
        self.sent += len(orders)
        for command in orders:
            self._tell(command)
        for name in self.orchestrator.registrations_to_request():
            if name in self.nodes:
                self._say(self._registration(self.nodes[name]))
        # A pack written meanwhile may be larger than the ordered one; then there is less room than was promised.
        promised = self.promised()
        for name in {command.searcher_id for command in orders if isinstance(command.order, Load)} & promised.keys():
            assert promised[name] <= self.reports[name].free_space, "more is promised than there is room for"

    def promised(self) -> dict[str, int]:
        """Return the MB that each searcher needs for the loads that were ordered a short while ago."""
        needed: dict[str, int] = {}
        for (name, _domain), (order, _before, at) in self.outstanding.items():
            if isinstance(order, Load) and self.now - at < EXPIRY:
                needed[name] = needed.get(name, 0) + order.size_mb
        return needed

    def _tell(self, command: AddressedOrder) -> None:
        name, order = command.searcher_id, command.order
        earlier = self.outstanding.get((name, order.domain))
        assert earlier is None or self.now - earlier[2] >= EXPIRY, f"{order} is sent while {earlier} is pending"
        self.outstanding[name, order.domain] = (order, self._recorded_packs(name).get(order.domain, ""), self.now)
        if name in self.nodes:
            self.nodes[name].inbox.append((self.now, order))
        else:
            self.orchestrator.remove_searcher(name, "its queue is no more")
            self._forget(name)

    def _forget(self, name: str) -> None:
        self.outstanding = {key: value for key, value in self.outstanding.items() if key[0] != name}

    # What is so in the end.

    @invariant()
    def nobody_holds_more_than_it_has_room_for(self) -> None:
        for node in self.nodes.values():
            assert sum(each.size_mb for each in node.held.values()) <= node.capacity

    def teardown(self) -> None:
        """Let messages arrive in order: every pack that fits is placed, and then no order is sent."""
        self._look_at_all()
        for _ in range(80):
            self._step(seconds=BEAT)
            if self.orchestrator.unclear_domains():
                self._look_at_all()
        sent = self.sent
        for _ in range(40):
            self._step(seconds=BEAT)
        assert self.sent == sent, "orders do not come to an end"
        self._all_is_placed()

    def _all_is_placed(self) -> None:
        nodes = list(self.nodes.values())
        assert {route.domain for route in self.orchestrator.routes(now=self.now).routes} == set(self.store)
        for node in nodes:
            assert node.held.keys() <= self.store.keys()
            assert self._recorded_packs(node.name) == {each.domain: each.sha256 for each in node.held.values()}
        for route in self.orchestrator.routes(now=self.now).routes:
            pack = self.store[route.domain]
            newest = {
                node.name for node in nodes if pack.domain in node.held and node.held[pack.domain].sha256 == pack.sha256
            }
            assert set(route.searchers[: route.newest]) == newest or not newest
            assert route.missing == REPLICAS - len(newest)
            if len(newest) < min(REPLICAS, len(nodes)):
                assert all(node.free < pack.size_mb for node in nodes if node.name not in newest)
                assert route.unplaced_reason


def happens(chance: random.Random | None, probability: float) -> bool:
    """Tell whether something happens now; where nothing is left to chance, it does not."""
    return chance is not None and chance.random() < probability


def _answering(routes: Routes) -> dict[str, set[str]]:
    return {route.domain: set(route.searchers) for route in routes.routes}


World.TestCase.settings = settings(
    max_examples=60, stateful_step_count=25, suppress_health_check=[HealthCheck.too_slow], deadline=None
)
TestWorld = World.TestCase
