"""The plans, rules and report of `make chaos`: a seed decides everything, each rule can break, no process is left."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from config.settings import ROOT
from tests.chaos import report
from tests.chaos.faults import FAULTS
from tests.chaos.ledger import RULES, Ledger, Letter, PackRecord, Remains, Violation, duplicates, violations
from tests.chaos.leftovers import marked_processes, none_left
from tests.chaos.rounds import RoundResult, recovery
from tests.chaos.schedule import MIXED, mixable_pairs, plan_rounds
from tests.chaos.sites import DELAY, FLAKY_FAILURES, MORE_PAGES, REDIRECT_TARGET, Get, plan_site, plan_sites, served
from tests.support.waiting import eventually

pytestmark = pytest.mark.unit

ROWS = (*FAULTS, MIXED)


def result(row: str, *violations: Violation, recovery: float | None = 1.0) -> RoundResult:
    return RoundResult(plan_rounds(1, [row], FAULTS, rounds=1)[0], violations, Counter(), recovery, seconds=10.0)


def test_a_seed_decides_the_rounds_of_a_fault_whatever_other_faults_are_chosen() -> None:
    plans = plan_rounds(7, ROWS, FAULTS, rounds=3)
    assert plans == plan_rounds(7, ROWS, FAULTS, rounds=3)
    assert plans != plan_rounds(8, ROWS, FAULTS, rounds=3)
    assert plan_rounds(7, ["kill-redis"], FAULTS, rounds=1)[0] in plans


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


def test_one_site_of_a_round_needs_no_delay_so_its_pages_share_messages() -> None:
    first, *others = plan_sites("seed", number=3, pages=20)
    assert (first.delay, len(first.pages)) == (0, MORE_PAGES * 20 + 1)
    assert {(each.delay, len(each.pages)) for each in others} == {(DELAY, 21)}


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


def test_the_report_counts_by_fault_and_a_violation_fails_its_row() -> None:
    results = [result("kill-worker", LOST, recovery=2.0), result("kill-worker", recovery=4.0)]
    results.append(result("hang-redis", recovery=None))
    assert list(report.rows(results)) == [
        ("kill-worker", "2", "1", "0", "0", "0", "0", "3.0 s", "4.0 s", "FAILED"),
        ("hang-redis", "1", "0", "0", "0", "0", "0", "-", "-", "ok"),
    ]


DOMAIN = "127.0.0.1:1"
SITE = plan_site("seed", pages=20)
CONTENTS = {path: SITE.pages[path].content for path in SITE.fetchable}
PACK = PackRecord(DOMAIN, 1, "full", CONTENTS)
LETTERS = tuple(Letter(DOMAIN, "site.page", path) for path in SITE.of_kind("dead"))
GETS = tuple(Get(DOMAIN, path, 200, 1.0) for path in SITE.fetchable)
SOUND = Ledger(sites={DOMAIN: SITE}, gets=GETS, stored={DOMAIN: CONTENTS}, packs=(PACK,), letters=LETTERS)

LACKING = {path: content for path, content in CONTENTS.items() if path != REDIRECT_TARGET}

SECOND = replace(PACK, generation=2)

BROKEN: dict[str, Ledger] = {
    "every page that can be fetched is in the last pack": replace(
        SOUND, packs=(PACK, replace(SECOND, contents=LACKING))
    ),
    "each message that always fails leaves a dead letter": replace(SOUND, letters=LETTERS[1:]),
    "every text is that of its page": replace(SOUND, stored={DOMAIN: CONTENTS | {"/": "another text"}}),
    "no other message is dead": replace(SOUND, letters=(*LETTERS, Letter(DOMAIN, "site.pack_full"))),
    "the first pack has every page": replace(SOUND, packs=(replace(PACK, contents=LACKING), SECOND)),
    "a full pack comes in the end": replace(SOUND, packs=(replace(PACK, kind="incremental"),)),
    "no timer is left": replace(SOUND, remains=Remains(timers=[DOMAIN])),
    "no open message is left": replace(SOUND, remains=Remains(open_messages={DOMAIN: 1}, open_urls={DOMAIN: ["/a"]})),
    "no page waits to be published again": replace(SOUND, remains=Remains(published_again=["... published again: /a"])),
    "no message waits in a queue": replace(SOUND, remains=Remains(queued={"site.delay.600": 1})),
    "every process runs": replace(SOUND, remains=Remains(not_running=["beat"])),
    "no process ended by itself": replace(SOUND, remains=Remains(ended=["beat ended with 1"])),
    "a searcher serves the newest pack": replace(SOUND, remains=Remains(unserved=[DOMAIN])),
    "only a fault that redelivers repeats an effect": replace(SOUND, gets=(*GETS, GETS[0])),
}


def test_a_round_that_lost_nothing_meets_every_rule() -> None:
    assert violations(SOUND) == []


def test_each_rule_has_an_example_that_breaks_it() -> None:
    assert BROKEN.keys() == RULES.keys()


@pytest.mark.parametrize("rule", BROKEN)
def test_a_ledger_that_breaks_a_rule_is_a_violation_of_it(rule: str) -> None:
    found = violations(BROKEN[rule])
    assert rule in {violation.rule for violation in found}
    assert {violation.column for violation in found if violation.rule == rule} == {RULES[rule][0]}


def test_a_domain_without_any_pack_has_lost_every_page() -> None:
    found = [each for each in violations(replace(SOUND, packs=())) if each.column == "lost"]
    assert len(found) == len(SITE.fetchable)
    assert all("(stored)" in each.detail for each in found)


def test_a_page_that_the_site_does_not_have_is_wrong() -> None:
    extra = CONTENTS | dict.fromkeys(SITE.of_kind("redirect"), "text")
    found = violations(replace(SOUND, packs=(replace(PACK, contents=extra),)))
    assert [each.column for each in found] == ["wrong"]


def test_what_a_fault_may_repeat_is_counted_and_is_no_violation() -> None:
    again = replace(SOUND, gets=(*GETS, GETS[0], GETS[1]), packs=(PACK, SECOND))
    assert duplicates(again) == {"fetch": 2, "pack": 1, "letter": 0}
    assert len(violations(again)) == 2
    assert violations(replace(again, repeatable=frozenset({"fetch", "pack"}))) == []


def test_failed_answers_to_a_page_are_no_duplicates() -> None:
    retried = replace(SOUND, gets=(*GETS, *(Get(DOMAIN, path, 503, 0.5) for path in SITE.of_kind("flaky"))))
    assert duplicates(retried).total() == 0


#: A run that starts a process of its own, suspends it, and waits.
RUN = """
import os, signal, subprocess, sys
from pathlib import Path
from tests.chaos.leftovers import none_left
with none_left(Path(sys.argv[1]), {"MARK": sys.argv[1]}):
    sleep = subprocess.Popen(["sleep", "600"], env={"MARK": sys.argv[1]}, start_new_session=True)
    os.kill(sleep.pid, signal.SIGSTOP)
    print("runs", flush=True)
    sys.stdin.read()
"""


def test_nothing_runs_after_a_run_was_killed(tmp_path: Path) -> None:
    marks = {"MARK": str(tmp_path)}
    command = [sys.executable, "-c", RUN, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"runs\n"
        assert [each.name() for each in marked_processes(marks)] == ["sleep"]
        run.send_signal(signal.SIGKILL)
    eventually(lambda: not marked_processes(marks), "the process of the run is gone", seconds=60)


def test_nothing_of_a_run_is_left_when_its_block_ends(tmp_path: Path) -> None:
    marks = {"MARK": str(tmp_path)}
    with none_left(tmp_path, marks):
        sleep = subprocess.Popen(["sleep", "600"], env=marks)
        assert [each.pid for each in marked_processes(marks)] == [sleep.pid]
    assert sleep.wait(10) == -signal.SIGKILL
