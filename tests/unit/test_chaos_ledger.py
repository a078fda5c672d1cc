"""The rules of `make chaos`: a round without faults meets all, and each rule can be broken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos.ledger import RULES, Ledger, Letter, PackRecord, Remains, duplicates, violations
from tests.chaos.sites import REDIRECT_TARGET, Get, plan_site

pytestmark = pytest.mark.unit

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
