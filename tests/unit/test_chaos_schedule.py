"""The plans and the report of `make chaos`: a seed decides everything, and the verdict follows from the violations."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.chaos import report
from tests.chaos.faults import FAULTS
from tests.chaos.ledger import RULES, Violation
from tests.chaos.rounds import RoundResult, recovery
from tests.chaos.schedule import MIXED, mixable_pairs, plan_rounds
from tests.chaos.sites import FLAKY_FAILURES, Get, plan_site, served

pytestmark = pytest.mark.unit

ROWS = (*FAULTS, MIXED)


def result(row: str, *violations: Violation, recovery: float | None = 1.0) -> RoundResult:
    return RoundResult(plan_rounds(1, [row], FAULTS, rounds=1)[0], violations, Counter(), recovery, seconds=10.0)


def test_the_same_seed_gives_the_same_rounds_and_another_seed_gives_others() -> None:
    assert plan_rounds(7, ROWS, FAULTS, rounds=3) == plan_rounds(7, ROWS, FAULTS, rounds=3)
    assert plan_rounds(7, ROWS, FAULTS, rounds=3) != plan_rounds(8, ROWS, FAULTS, rounds=3)


def test_a_fault_has_the_same_round_whatever_other_faults_are_chosen() -> None:
    alone = plan_rounds(7, ["kill-redis"], FAULTS, rounds=1)
    assert alone[0] in plan_rounds(7, ROWS, FAULTS, rounds=1)


def test_every_row_gets_its_rounds_and_each_fault_lasts_as_long_as_it_may() -> None:
    plans = plan_rounds(7, ROWS, FAULTS, rounds=5)
    assert Counter(plan.row for plan in plans) == dict.fromkeys(ROWS, 5)
    for plan in plans:
        for planned in plan.faults:
            shortest, longest = FAULTS[planned.name].seconds
            assert shortest <= planned.seconds <= longest
        assert len(plan.faults) == (2 if plan.row == MIXED else 1)


def test_faults_of_one_target_or_of_two_kinds_of_store_are_never_mixed() -> None:
    pairs = mixable_pairs(FAULTS)
    assert pairs
    for one, two in pairs:
        assert one.target != two.target
        assert len({one.store, two.store} - {"folder"}) <= 1


def test_every_page_of_a_generated_site_is_reachable_and_every_kind_is_there() -> None:
    site = plan_site("seed", pages=40)
    reached, new = set[str](), {"/"}
    while new:
        reached |= new
        new = {link for path in new for link in site.pages[path].links if site.pages[path].kind != "missing"} - reached
    assert reached == site.pages.keys()
    assert {page.kind for page in site.pages.values()} == {"plain", "flaky", "slow", "dead", "redirect", "missing"}
    assert len({page.text for page in site.pages.values()}) == len(site.pages)


def test_answers_are_noted_with_their_status_and_a_flaky_page_succeeds_in_the_end() -> None:
    import urllib3

    plan, journal = plan_site("seed", pages=20), list[Get]()
    flaky = next(iter(plan.of_kind("flaky")))
    with served([plan], journal) as sites:
        url = f"http://{next(iter(sites))}{flaky}"
        with urllib3.PoolManager(retries=False) as pool:
            answers = [pool.request("GET", url).status for _ in range(FLAKY_FAILURES + 1)]
    assert answers == [503] * FLAKY_FAILURES + [200]
    assert [get.status for get in journal] == answers


def test_recovery_is_the_time_to_the_next_page() -> None:
    gets = [Get("site", "/", 200, at) for at in (1.0, 5.5, 7.0)]
    assert recovery(gets, 5.0) == 0.5
    assert recovery(gets, 8.0) is None


LOST = Violation(next(iter(RULES)), "lost", "site/1")


def test_a_violation_fails_its_row() -> None:
    assert report.verdict([result("kill-worker")]) == "ok"
    assert report.verdict([result("kill-worker"), result("kill-worker", LOST)]) == "FAILED"


def test_the_report_counts_by_fault_and_summarises_the_recovery_of_kills_and_hangs() -> None:
    results = [
        result("kill-worker", LOST, recovery=2.0),
        result("kill-redis", recovery=4.0),
        result("hang-redis", recovery=None),
        result("full-redis", recovery=9.0),
    ]
    cells = {row[0]: row for row in report.rows(results)}
    assert list(cells) == ["kill-worker", "kill-redis", "hang-redis", "full-redis", "all kills", "all hangs"]
    assert cells["kill-worker"] == ("kill-worker", "1", "1", "0", "0", "0", "0", "2.0 s", "2.0 s", "FAILED")
    assert cells["all kills"][7:9] == ("3.0 s", "4.0 s")
    assert cells["all hangs"][7:9] == ("-", "-")
