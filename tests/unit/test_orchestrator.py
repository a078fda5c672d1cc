"""The orchestrator's state: reports, orders, routes, and that orders come to an end."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from app.cluster.orchestrator.registry import GRACE
from app.cluster.orchestrator.searcher_record import FIRST_BACKOFF
from app.cluster.orchestrator.state import OrchestratorState
from app.cluster.placement.copies import Copies
from app.cluster.placement.model import AddressedOrder, ClusterState, Pack, Placement
from app.cluster.placement.place import place
from app.cluster.protocol import Load, OrderOutcome, SearcherReport, Unload
from app.errors import NotPlaced, PackNotFound, SearchUnavailable
from tests.packs import version_of

pytestmark = pytest.mark.unit

#: Seconds between heartbeats.
BEAT = 2.0


def pack(domain: str = "x.example", generation: int = 1, size_mb: int = 10) -> Pack:
    return Pack(domain=domain, sha256=f"{domain}:{generation}", generation=generation, size_mb=size_mb)


def report(name: str, seq: int, *packs: Pack, loading: tuple[str, ...] = (), leaving: bool = False) -> SearcherReport:
    held = tuple(map(version_of, packs))
    free = 100 - sum(one.size_mb for one in packs)
    return SearcherReport(
        searcher_id=name,
        seq=seq,
        changes=seq,
        free_space=free,
        capacity=100,
        pack_versions=held,
        loading=loading,
        leaving=leaving,
    )


def outcome(after: SearcherReport, one: Pack, reason: str = "") -> OrderOutcome:
    held = next((version for version in after.pack_versions or () if version.domain == one.domain), None)
    return OrderOutcome(report=after, domain=one.domain, sha256=one.sha256, reason=reason, held=held)


def heartbeat(name: str, seq: int, *, changes: int) -> SearcherReport:
    return SearcherReport(searcher_id=name, seq=seq, changes=changes, free_space=100, capacity=100, loading=())


def ready_state(*packs: Pack, replicas: int = 1) -> OrchestratorState:
    found = OrchestratorState(replicas=replicas, heartbeat=BEAT, now=0)
    for one in packs:
        found.pack_updated(one)
    found.begin_placing()
    return found


def load(name: str, one: Pack) -> tuple[str, Load]:
    return name, one.load()


def orders_of(orders: tuple[AddressedOrder, ...]) -> list[tuple[str, Load | Unload]]:
    return [(command.searcher_id, command.order) for command in orders]


def test_an_orchestrator_that_has_not_settled_orders_nothing_but_knows_loaded_packs() -> None:
    orchestrator = OrchestratorState(replicas=1, heartbeat=BEAT, now=0)
    orchestrator.receive_report(report("a", 1, pack("held.example")), now=0)

    assert orchestrator.tick(now=0.1) == ()
    assert orchestrator.next_searcher("held.example") == "a"
    with pytest.raises(SearchUnavailable):
        orchestrator.next_searcher("other.example")

    orchestrator.begin_placing()
    with pytest.raises(PackNotFound, match=r"other\.example"):
        orchestrator.next_searcher("other.example")


def test_queries_are_spread_over_the_searchers_with_the_newest_version() -> None:
    orchestrator = ready_state(pack(generation=2))
    orchestrator.receive_report(report("old", 1, pack()), now=0)
    for name in "ab":
        orchestrator.receive_report(report(name, 1, pack(generation=2)), now=0)

    assert [orchestrator.next_searcher("x.example") for _ in range(4)] == ["a", "b", "a", "b"]
    assert orchestrator.routes(now=0).routes[0].searchers == ("a", "b", "old")


def test_a_report_that_is_older_than_the_last_one_changes_nothing() -> None:
    orchestrator = ready_state(pack())
    orchestrator.receive_report(report("a", 5, pack()), now=0)

    orchestrator.receive_report(report("a", 4), now=1)
    orchestrator.receive_outcome(outcome(report("a", 4), pack()), now=1)
    assert orchestrator.next_searcher("x.example") == "a"
    orchestrator.remove_searcher("a", "its queue is no more")
    orchestrator.receive_report(report("a", 5, pack()), now=1)
    assert orchestrator.routes(now=1).searchers == ()
    orchestrator.receive_report(report("a", 6, pack()), now=1)
    assert orchestrator.next_searcher("x.example") == "a"


def test_a_searcher_is_gone_after_three_heartbeats_were_missed_and_its_packs_are_placed_again() -> None:
    orchestrator = ready_state(pack())
    orchestrator.receive_report(report("a", 1, pack()), now=0)
    for beat in range(1, 4):
        orchestrator.receive_report(report("b", beat), now=beat * BEAT)
        assert orchestrator.tick(now=beat * BEAT) == ()

    orchestrator.receive_report(report("b", 4), now=3 * BEAT + 0.1)
    assert orders_of(orchestrator.tick(now=3 * BEAT + 0.1)) == [load("b", pack())]


def test_an_orchestrator_that_was_suspended_does_not_count_searchers_as_gone() -> None:
    orchestrator = ready_state(pack())
    orchestrator.receive_report(report("a", 1, pack()), now=0)
    orchestrator.tick(now=0.1)

    orchestrator.tick(now=60)

    assert orchestrator.next_searcher("x.example") == "a"
    for now in range(61, 68):
        orchestrator.tick(now=now)
    with pytest.raises(NotPlaced):
        orchestrator.next_searcher("x.example")


def placed_on_a() -> OrchestratorState:
    """Return a connected orchestrator whose searcher `a` has the pack, beside `b` without any, at 0 s."""
    orchestrator = ready_state(pack())
    orchestrator.connected(now=0)
    orchestrator.receive_report(report("a", 1, pack()), now=0)
    orchestrator.receive_report(report("b", 1), now=0)
    orchestrator.tick(now=0)
    return orchestrator


def test_after_a_broker_outage_nothing_is_placed_until_searchers_had_time_to_register() -> None:
    orchestrator = placed_on_a()
    orchestrator.connected(now=30)
    orchestrator.remove_searcher("a", "its queue is no more")
    orchestrator.receive_report(report("b", 2), now=31)
    assert orchestrator.tick(now=31) == ()
    orchestrator.receive_report(report("a", 2, pack()), now=32)
    assert orchestrator.tick(now=32) == ()
    assert orchestrator.next_searcher("x.example") == "a"


def test_a_searcher_that_is_away_after_a_broker_outage_is_replaced_when_its_time_to_register_is_over() -> None:
    orchestrator = placed_on_a()
    orchestrator.connected(now=60)
    for second in range(int(GRACE)):
        orchestrator.receive_report(report("b", 2 + second), now=60 + second)
        assert orchestrator.tick(now=60 + second) == ()
        assert orchestrator.next_searcher("x.example") == "a"
    assert orders_of(orchestrator.tick(now=60 + GRACE)) == [load("b", pack())]


def test_a_searcher_that_died_before_the_orchestrator_started_is_not_awaited() -> None:
    orchestrator = ready_state(pack())
    # A report that was queued for the previous orchestrator.
    orchestrator.receive_report(report("a", 1, pack()), now=0)
    orchestrator.connected(now=0)
    orchestrator.receive_report(report("b", 1), now=0)

    for beat in (1, 2, 3):
        orchestrator.receive_report(report("b", 1 + beat), now=beat * BEAT)
        assert orchestrator.tick(now=beat * BEAT) == ()
    orchestrator.receive_report(report("b", 5), now=4 * BEAT)
    assert orders_of(orchestrator.tick(now=4 * BEAT)) == [load("b", pack())]


def test_an_order_without_effect_for_three_heartbeats_is_sent_again() -> None:
    orchestrator = ready_state(pack())
    orchestrator.receive_report(report("a", 1), now=0)
    assert orders_of(orchestrator.tick(now=0)) == [load("a", pack())]

    for beat in range(1, 3):
        orchestrator.receive_report(report("a", 1 + beat), now=beat * BEAT)
        assert orchestrator.tick(now=beat * BEAT) == ()
    orchestrator.receive_report(report("a", 4), now=3 * BEAT)
    assert orders_of(orchestrator.tick(now=3 * BEAT)) == [load("a", pack())]


def test_an_order_that_is_under_way_is_waited_for_however_long_it_takes() -> None:
    orchestrator = ready_state(pack())
    orchestrator.receive_report(report("a", 1), now=0)
    orchestrator.tick(now=0)

    for beat in range(1, 100):
        orchestrator.receive_report(report("a", 1 + beat, loading=(pack().sha256,)), now=beat * BEAT)
        assert orchestrator.tick(now=beat * BEAT) == ()


def test_orders_of_a_former_orchestrator_are_not_repeated() -> None:
    orchestrator = ready_state(pack(), pack("y.example", size_mb=95))
    orchestrator.receive_report(report("a", 1, loading=(pack().sha256,)), now=0)

    assert orchestrator.tick(now=0) == ()


def test_a_searcher_that_loads_an_unknown_version_gets_no_order_until_it_is_loaded() -> None:
    orchestrator = ready_state(pack())
    orchestrator.receive_report(report("a", 1, loading=("of unknown size",)), now=0)
    assert orchestrator.tick(now=0) == ()

    orchestrator.receive_report(report("a", 2), now=1)
    assert orders_of(orchestrator.tick(now=1)) == [load("a", pack())]


def test_each_failure_doubles_the_backoff_and_its_reason_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    orchestrator = ready_state(pack())
    orchestrator.receive_report(report("a", 0), now=0)
    given_at: list[float] = []
    now = 0.0
    while len(given_at) < 5 and now < 100:
        if orchestrator.tick(now=now):
            given_at.append(now)
            orchestrator.receive_outcome(outcome(report("a", int(now * 10) + 1), pack(), "the disk is full"), now=now)
        now += 0.5
        orchestrator.receive_report(report("a", int(now * 10)), now=now)

    assert [after - before for before, after in pairwise(given_at)] == [4, 8, 16, 32]
    orchestrator.tick(now=now)
    assert orchestrator.routes(now=now).routes[0].unplaced_reason == "searcher a failed to load it: the disk is full"
    assert "x.example: a copy cannot be placed: searcher a failed to load it: the disk is full" in caplog.text


def test_a_decision_is_made_after_a_change_and_at_the_end_of_a_backoff_but_not_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decided_at: list[float] = []

    def place_and_note(state: ClusterState, copies: Copies) -> Placement:
        decided_at.append(now)
        return place(state, copies)

    monkeypatch.setattr("app.cluster.orchestrator.state.place", place_and_note)
    orchestrator = ready_state(pack())
    orchestrator.receive_report(report("a", 0), now=0)
    for turn in range(40):
        now = turn / 4
        if now == 1.0:
            orchestrator.receive_outcome(outcome(report("a", 1), pack(), "the disk is full"), now=now)
        orchestrator.receive_report(heartbeat("a", turn + 2, changes=1), now=now)
        orchestrator.tick(now=now)

    # At 5 seconds the pack is ordered again.
    assert decided_at == [0.0, 1.0, 1.0 + FIRST_BACKOFF]


def test_a_failure_counts_even_if_a_later_report_came_first() -> None:
    orchestrator = ready_state(pack())
    orchestrator.receive_report(report("a", 1), now=0)
    orchestrator.tick(now=0)

    orchestrator.receive_report(report("a", 3), now=0.1)
    orchestrator.receive_outcome(outcome(report("a", 2), pack(), "the disk is full"), now=0.2)
    orchestrator.receive_report(report("b", 1), now=0.3)

    assert orders_of(orchestrator.tick(now=0.4)) == [load("b", pack())]


def test_a_version_newer_than_the_last_scan_is_kept_until_the_next_scan() -> None:
    orchestrator = ready_state(pack(generation=4))
    orchestrator.receive_report(report("a", 1, pack(generation=5)), now=0)

    assert orchestrator.unclear_domains() == {"x.example"}
    assert orchestrator.tick(now=0) == ()
    assert orchestrator.routes(now=0).routes[0].missing == 0

    orchestrator.pack_updated(pack(generation=4))
    assert orchestrator.unclear_domains() == frozenset()
    orchestrator.receive_report(replace(report("a", 2, pack(generation=5)), free_space=90), now=1)
    assert orders_of(orchestrator.tick(now=1)) == [load("a", pack(generation=4))]


def test_a_searcher_that_leaves_answers_nothing_new() -> None:
    orchestrator = ready_state(pack())
    orchestrator.receive_report(report("a", 1, pack()), now=0)
    orchestrator.receive_report(report("b", 1), now=0)
    orchestrator.receive_report(report("a", 2, pack(), leaving=True), now=1)
    orchestrator.receive_report(report("late", 9, pack(), leaving=True), now=1)
    assert [each.searcher_id for each in orchestrator.routes(now=1).searchers] == ["a", "b"]
    with pytest.raises(NotPlaced):
        orchestrator.next_searcher("x.example")
    assert orders_of(orchestrator.tick(now=1)) == [load("b", pack())]


def test_a_searcher_is_heard_again_after_a_forged_report_with_a_higher_number() -> None:
    orchestrator = ready_state(pack())
    orchestrator.receive_report(report("a", 1, pack()), now=0)
    orchestrator.receive_report(report("a", 2**50), now=0)
    for beat in range(5):
        orchestrator.tick(now=beat * BEAT)
    orchestrator.receive_report(report("a", 2, pack()), now=4 * BEAT)
    assert orchestrator.routes(now=4 * BEAT).searchers == ()

    for beat in range(5, 9):
        orchestrator.tick(now=beat * BEAT)
    orchestrator.receive_report(report("a", 3, pack()), now=8 * BEAT)
    assert orchestrator.next_searcher(pack().domain) == "a"


def test_a_searcher_is_requested_to_register_when_an_outcome_is_missing_and_not_while_it_is_on_its_way() -> None:
    packs = [pack(f"{name}.example") for name in "xyz"]
    orchestrator = ready_state(*packs)
    orchestrator.receive_report(report("a", 1), now=0)
    orchestrator.tick(now=0)

    # Heartbeats use another queue, and overtake the outcome of the first load.
    orchestrator.receive_report(heartbeat("a", 3, changes=2), now=1)
    assert orchestrator.registrations_to_request() == ()
    orchestrator.receive_outcome(outcome(report("a", 2, packs[0]), packs[0]), now=2)
    for beat in (3, 4, 5):
        assert orchestrator.registrations_to_request() == ()
        orchestrator.receive_report(heartbeat("a", 1 + beat, changes=2), now=beat)
        assert orchestrator.next_searcher("x.example") == "a"
    # The outcome of the second load never arrives. That of the third does: it is applied, and shows the loss.
    late = replace(report("a", 8, packs[2]), changes=4)
    orchestrator.receive_outcome(outcome(late, packs[2]), now=5)
    assert orchestrator.registrations_to_request() == ("a",)
    assert orchestrator.next_searcher("z.example") == "a"
    orchestrator.receive_report(heartbeat("a", 9, changes=4), now=6)
    assert orchestrator.registrations_to_request() == ()

    orchestrator.receive_report(replace(report("a", 10, *packs), changes=4), now=7)
    assert orchestrator.next_searcher("y.example") == "a"
    # A pack that is dropped without a word shows in the heartbeats.
    for beat in range(4):
        assert orchestrator.registrations_to_request() == ()
        orchestrator.receive_report(heartbeat("a", 11 + beat, changes=5), now=8 + beat * BEAT)
    assert orchestrator.registrations_to_request() == ("a",)


def test_a_heartbeat_of_a_searcher_that_is_not_registered_makes_it_register() -> None:
    orchestrator = ready_state(pack())
    for name in "ab":
        orchestrator.receive_report(heartbeat(name, 2, changes=1), now=0)
    orchestrator.receive_report(heartbeat("a", 3, changes=1), now=1)
    assert orchestrator.registrations_to_request() == ("a", "b")
    assert orchestrator.routes(now=1).searchers == ()
    orchestrator.receive_report(report("a", 1, pack()), now=1)
    assert orchestrator.next_searcher("x.example") == "a"
