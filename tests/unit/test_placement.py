"""Placement: no decision breaks a guarantee, and repeated decisions end with every pack placed that can be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cluster.placement.model import AddressedOrder, ClusterState, LoadFailure, Pack, SearcherState
from app.cluster.placement.place import place
from app.cluster.protocol import Load, Unload
from tests.packs import version_of

pytestmark = pytest.mark.unit


def pack(domain: str, size_mb: int, generation: int = 1) -> Pack:
    return Pack(domain=domain, sha256=f"{domain}:{generation}", generation=generation, size_mb=size_mb)


def searcher(name: str, capacity: int, *packs: Pack, **fields: object) -> SearcherState:
    """Return a searcher of this capacity with these packs."""
    used = sum(each.size_mb for each in packs)
    held = {each.domain: version_of(each) for each in packs}
    found = SearcherState(searcher_id=name, free=capacity - used, capacity=capacity, used=used, held=held)
    return replace(found, **fields)  # type: ignore[arg-type]


def state(
    packs: Iterable[Pack], *searchers: SearcherState, replicas: int = 2, deleted: Iterable[str] = ()
) -> ClusterState:
    return ClusterState(
        packs={each.domain: each for each in packs}, searchers=searchers, replicas=replicas, deleted=frozenset(deleted)
    )


def orders_of(decided: ClusterState) -> list[tuple[str, str, str]]:
    """Return the orders of a decision as (searcher, order, domain)."""
    return [(each.searcher_id, type(each.order).__name__, each.order.domain) for each in place(decided).orders]


def done(before: ClusterState, orders: Iterable[AddressedOrder]) -> ClusterState:
    """Return the state after the orders were executed."""
    after = {each.searcher_id: each for each in before.searchers}
    for command in orders:
        after[command.searcher_id] = _done(after[command.searcher_id], command.order)
    return replace(before, searchers=tuple(after.values()))


def _done(before: SearcherState, order: Load | Unload) -> SearcherState:
    now = dict(before.held)
    old = now.pop(order.domain, None)
    free = before.free + (old.size_mb if old else 0)
    if isinstance(order, Load):
        now[order.domain] = version_of(order)
        free -= order.size_mb
    return replace(before, held=now, free=free, used=before.used + before.free - free)


def at_rest(begin: ClusterState, *, most: int = 300) -> ClusterState:
    """Repeat decisions until there are no more orders, and return the state."""
    now = begin
    for _ in range(most):
        orders = place(now).orders
        if not orders:
            return now
        now = done(now, orders)
    raise AssertionError(f"still orders after {most} decisions: {place(now)}")


def where(now: ClusterState, domain: str) -> dict[str, int]:
    """Return searcher -> generation of a domain's copies."""
    return {each.searcher_id: each.held[domain].generation for each in now.searchers if domain in each.held}


# What is decided


def test_first_copies_are_placed_before_second_ones_and_larger_packs_first() -> None:
    packs = [pack("small.example", 10), pack("big.example", 50)]

    assert orders_of(state(packs, searcher("a", 100), searcher("b", 90))) == [
        ("a", "Load", "big.example"),
        ("b", "Load", "small.example"),
        ("b", "Load", "big.example"),
        ("a", "Load", "small.example"),
    ]


def test_an_update_is_loaded_where_the_older_version_is_if_there_is_room_for_both() -> None:
    old, new = pack("x.example", 40), pack("x.example", 50, 2)

    assert orders_of(state([new], searcher("a", 100), searcher("b", 90, old), replicas=1)) == [
        ("b", "Load", "x.example")
    ]


def test_an_older_version_makes_room_for_the_newer_only_while_another_copy_answers() -> None:
    old, new = pack("x.example", 60), pack("x.example", 60, 2)

    both = state([new], searcher("a", 100, old), searcher("b", 100, old))
    assert len(orders_of(both)) == 1
    assert where(at_rest(both), "x.example") == {"a": 2, "b": 2}

    alone = state([new], searcher("a", 100, old))
    assert orders_of(alone) == []
    assert place(alone).unplaced == {
        "x.example": "60 MB beside the version that it replaces, and no other searcher has more than 40 MB free"
    }


def test_a_pack_too_big_for_every_searcher_is_reported_and_placed_once_a_bigger_one_registers() -> None:
    big = pack("big.example", 500)
    small = searcher("a", 100)

    alone = place(state([big], small, replicas=1))
    assert alone.orders == ()
    assert alone.unplaced == {"big.example": "500 MB, and no other searcher has a capacity of more than 100 MB"}
    assert orders_of(state([big], small, searcher("b", 501), replicas=1)) == [("b", "Load", "big.example")]


def test_a_pack_is_moved_to_make_room_for_one_that_fits_nowhere_else() -> None:
    stays, goes, big = pack("stays.example", 45), pack("goes.example", 30), pack("big.example", 50)
    begin = state([stays, goes, big], searcher("a", 100, stays, goes), searcher("b", 40), replicas=1)

    assert orders_of(begin) == [("b", "Load", "goes.example")]
    assert where(at_rest(begin), "big.example") == {"a": 1}


def test_as_few_spare_copies_as_possible_make_room_for_a_pack_without_any() -> None:
    small, medium, large = (pack(f"{size}.example", size) for size in (20, 30, 45))

    def begin(*searchers: SearcherState, size: int) -> ClusterState:
        return state([small, medium, large, pack("new.example", size)], *searchers)

    both = [searcher(name, 100, small, medium, large) for name in "ab"]
    assert orders_of(begin(*both, size=30)) == [("a", "Unload", "30.example")]
    assert orders_of(begin(*both, size=60)) == [("a", "Unload", "45.example"), ("a", "Unload", "30.example")]
    assert where(at_rest(begin(*both, size=60)), "new.example").keys() == {"a"}


def test_after_a_failed_load_another_searcher_is_ordered_first_and_this_one_backs_off() -> None:
    wanted = pack("x.example", 10)
    failed = searcher("a", 1_000, failures={wanted.sha256: LoadFailure(count=1, reason="disk full")})
    backing_off = replace(failed, backing_off=frozenset({wanted.sha256}))

    assert orders_of(state([wanted], failed, searcher("b", 100), replicas=1)) == [("b", "Load", "x.example")]
    assert orders_of(state([wanted], backing_off, replicas=1)) == []
    assert place(state([wanted], backing_off, replicas=1)).unplaced == {
        "x.example": "searcher a failed to load it: disk full"
    }


# What holds for every state

DOMAINS = tuple(f"{name}.example" for name in "pqrstu")


@st.composite
def states(draw: st.DrawFn, *, busy: bool) -> ClusterState:
    packs = {
        domain: pack(domain, draw(st.integers(1, 60)), draw(st.integers(1, 2)))
        for domain in draw(st.lists(st.sampled_from(DOMAINS), unique=True))
    }
    searchers = tuple(draw(_searchers(name, packs, busy=busy)) for name in "abcd"[: draw(st.integers(0, 4))])
    deleted = frozenset(DOMAINS) - set(packs) - {"u.example"}
    return ClusterState(packs=packs, searchers=searchers, replicas=draw(st.integers(1, 3)), deleted=deleted)


@st.composite
def _searchers(draw: st.DrawFn, name: str, packs: dict[str, Pack], *, busy: bool) -> SearcherState:
    capacity, left = (draw(st.integers(0, 150)),) * 2
    holds = []
    for domain in draw(st.lists(st.sampled_from(DOMAINS), unique=True)):
        newest = packs.get(domain)
        older = draw(st.booleans()) or newest is None
        one = pack(domain, draw(st.integers(1, 60)), 0) if older or newest is None else newest
        if one.size_mb <= left:
            holds.append(one)
            left -= one.size_mb
    found = searcher(name, capacity, *holds, leaving=draw(st.integers(0, 9)) == 0)
    if not busy:
        return found
    orders: dict[str, Load | Unload] = {}
    for domain in draw(st.lists(st.sampled_from(DOMAINS), unique=True)):
        if domain in found.held and draw(st.booleans()):
            orders[domain] = Unload(domain=domain, sha256=found.held[domain].sha256)
        elif domain in packs and packs[domain].size_mb <= left and packs[domain].sha256 != _checksum(found, domain):
            one = packs[domain]
            orders[domain] = Load(domain=domain, sha256=one.sha256, generation=1, size_mb=one.size_mb)
            left -= one.size_mb
    checksums = st.sampled_from([each.sha256 for each in packs.values()]) if packs else st.nothing()
    failures = dict.fromkeys(draw(st.lists(checksums, max_size=2, unique=True)), LoadFailure(count=1)) if packs else {}
    backing_off = frozenset(failures) if draw(st.booleans()) else frozenset()
    return replace(found, orders=orders, failures=failures, backing_off=backing_off)


def _checksum(found: SearcherState, domain: str) -> str:
    return found.held[domain].sha256 if domain in found.held else ""


def serving(now: ClusterState, domain: str) -> set[str]:
    """Return the searchers that serve a domain and have no order to unload it."""
    return {
        each.searcher_id
        for each in now.searchers
        if domain in each.held and not each.leaving and not isinstance(each.orders.get(domain), Unload)
    }


@given(states(busy=True))
def test_no_order_conflicts_with_a_pending_one_or_unloads_a_needed_copy(before: ClusterState) -> None:
    orders = place(before).orders
    assert place(replace(before, searchers=before.searchers[::-1])).orders == orders

    given_to = {each.searcher_id: each for each in before.searchers}
    pending = {name: dict(each.orders) for name, each in given_to.items()}
    for addressed in orders:
        name, order = addressed.searcher_id, addressed.order
        assert not given_to[name].leaving
        assert order.domain not in pending[name], "two orders for one domain"
        pending[name][order.domain] = order
        if isinstance(order, Unload):
            assert given_to[name].held[order.domain].sha256 == order.sha256
        else:
            assert order.sha256 == before.packs[order.domain].sha256 != _checksum(given_to[name], order.domain)
            assert order.sha256 not in given_to[name].backing_off
    for name, each in given_to.items():
        promised = sum(order.size_mb for order in pending[name].values() if isinstance(order, Load))
        assert promised <= each.free
    after = replace(before, searchers=tuple(replace(each, orders=pending[name]) for name, each in given_to.items()))
    for domain in before.packs:
        assert serving(after, domain) or not serving(before, domain), "the last copy that is served is unloaded"
    assert all(each.order.domain != "u.example" or "u.example" in before.packs for each in orders)


@given(states(busy=False))
def test_placement_ends_with_every_copy_placed_that_fits(begin: ClusterState) -> None:
    now = at_rest(begin)
    there = [each for each in now.searchers if not each.leaving]
    want = min(now.replicas, len(there))
    newest = {
        domain: [each for each in there if _checksum(each, domain) == one.sha256] for domain, one in now.packs.items()
    }
    for domain in now.deleted:
        assert not any(domain in each.held for each in there)
    for domain, one in now.packs.items():
        assert len(newest[domain]) <= want
        others = [each for each in there if each not in newest[domain]]
        if len(newest[domain]) == want:
            assert not any(domain in each.held for each in others), "an older version stays"
            continue
        assert domain in place(now).unplaced
        assert all(each.free < one.size_mb for each in others), "it has room, and is not placed"
        for each in others:
            assert not _would_fit_by_a_move(each, one, there, newest)
            if not newest[domain]:
                spare = sum(
                    each.held[name].size_mb for name in each.held if name in newest and _spare(each, name, newest)
                )
                assert each.free + spare < one.size_mb, "it has no copy, where others have two"


def _would_fit_by_a_move(
    host: SearcherState, one: Pack, there: list[SearcherState], newest: dict[str, list[SearcherState]]
) -> bool:
    return any(
        host.free + holding.size_mb >= one.size_mb and target.free >= holding.size_mb and name not in target.held
        for name, holding in host.held.items()
        if name != one.domain and host in newest.get(name, [])
        for target in there
        if target is not host
    )


def _spare(host: SearcherState, name: str, newest: dict[str, list[SearcherState]]) -> bool:
    return any(each is not host for each in newest[name])


# How packs are spread


@st.composite
def placed(draw: st.DrawFn) -> ClusterState:
    """Return a state with every copy placed: only a move to spread the packs can be left to order."""
    names = "abcd"[: draw(st.integers(2, 4))]
    replicas = draw(st.integers(1, len(names) - 1))
    packs = [pack(domain, draw(st.integers(1, 60))) for domain in DOMAINS[: draw(st.integers(1, 6))]]
    held: dict[str, list[Pack]] = {name: [] for name in names}
    failures: dict[str, dict[str, LoadFailure]] = {name: {} for name in names}
    for one in packs:
        shuffled = draw(st.permutations(names))
        # A copy too many stays only if no searcher unloads it.
        is_stuck = draw(st.integers(0, 9)) == 0
        copies = replicas + is_stuck
        for name in shuffled[:copies]:
            held[name].append(one)
        for name in shuffled[:copies] if is_stuck else shuffled[copies:]:
            if is_stuck or draw(st.integers(0, 4)) == 0:
                failures[name][one.sha256] = LoadFailure(count=1)
    searchers = [
        searcher(
            name,
            sum(each.size_mb for each in held[name]) + draw(st.sampled_from([0, 30, 60, 120, 200, 300])),
            *held[name],
            failures=failures[name],
            backing_off=frozenset(each.sha256 for each in held[name]) & failures[name].keys(),
        )
        for name in names
    ]
    return state(packs, *searchers, replicas=replicas)


def moves_that_spread(now: ClusterState) -> set[tuple[str, str, str]]:
    """Return source, target and domain of each move that makes the load and the room of both more even."""
    found = set()
    for source, target in permutations(now.searchers, 2):
        for domain in source.held.keys() - target.held.keys():
            one = now.packs[domain]
            holders = [each for each in now.searchers if domain in each.held]
            if (
                len(holders) == now.replicas
                # Its copy is the one that is unloaded in the end.
                and source is min(holders, key=lambda each: (each.free, each.searcher_id))
                and target.used <= source.used * 2 / 3
                and target.used + one.size_mb <= source.used - one.size_mb
                and target.free - one.size_mb >= source.free + one.size_mb
                and one.sha256 not in target.failures
            ):
                found.add((source.searcher_id, target.searcher_id, domain))
    return found


@given(placed())
def test_a_pack_moves_to_the_emptiest_searcher_with_at_most_two_thirds_of_the_load_if_that_evens_both(
    before: ClusterState,
) -> None:
    moves = moves_that_spread(before)
    orders = place(before).orders
    if not moves:
        assert orders == ()
        return
    used = {each.searcher_id: each.used for each in before.searchers}
    source, target, domain = min(
        moves, key=lambda move: (used[move[1]], move[1], -used[move[0]], -before.packs[move[2]].size_mb, move[2])
    )
    assert orders_of(before) == [(target, "Load", domain)]
    assert orders_of(done(before, orders)) == [(source, "Unload", domain)]
