"""Dead letters on the operations page and in its API, over real HTTP, with a real RabbitMQ."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from app.broker.failure import Failure
from app.broker.publishing import Publisher
from app.operations.audit import AuditEntry, AuditLog
from app.storage.open import store_of
from app.topology.queues import DEAD_SET
from app.topology.retry_policies import site_policy
from config.settings import Settings
from tests.support.broker import Broker
from tests.support.dead import failed_delivery, failure
from tests.support.decisions import carry_out_one
from tests.support.operating import READ_PASSWORD, OperatorAtPage, operated, text_of

pytestmark = pytest.mark.integration


@pytest.fixture
def operator(declared: Settings) -> Iterator[OperatorAtPage]:
    with operated(declared) as operator:
        yield operator


class Mortuary:
    """Dead-letters messages of `site.index` as a worker does."""

    def __init__(self, settings: Settings, publisher: Publisher) -> None:
        self._policy, self._publisher = site_policy(settings), publisher

    def add(self, bodies: Sequence[Mapping[str, Any] | bytes], why: Failure | None = None, **headers: Any) -> list[str]:
        """Dead-letter messages; return their ids."""
        ids = []
        for body in bodies:
            delivery = failed_delivery(body, "site.index", **headers)
            decision = self._policy.decide(delivery, why or failed("the site answered 503"))
            carry_out_one(decision, delivery, publisher=self._publisher)
            ids.append(str(decision.headers["perennial-dead-id"]))  # type: ignore[union-attr]
        return ids


def failed(message: str, *, line: int = 7, ago: float = 60.0, **fields: Any) -> Failure:
    return failure(line, at=time.time() - ago, permanent=True, message=message, **fields)


@pytest.fixture
def mortuary(declared: Settings, publisher: Publisher) -> Mortuary:
    return Mortuary(declared, publisher)


def pages(number: int, domain: str = "a.gov") -> list[dict[str, str]]:
    return [{"type": "index", "url": f"https://{domain}/{each}", "domain": domain} for each in range(number)]


def audited(settings: Settings) -> list[AuditEntry]:
    return list(AuditLog(store_of(settings)).entries())


def urls_in(broker: Broker, queue: str) -> list[str]:
    return sorted(json.loads(message.body)["url"] for message in broker.peek(queue))


def test_letters_are_grouped_by_cause_filtered_and_paged(operator: OperatorAtPage, mortuary: Mortuary) -> None:
    for number, page in enumerate(pages(60)):
        mortuary.add([page], failed(f"https://a.gov/{number} answered 503", task="site.index", ago=3 * 3600))
    [other] = mortuary.add(pages(1, "b.gov"), failed("no such field", line=9, task="site.crawl", worker="w2"))
    page = operator.open("/ops/dead")
    causes, letters = page.find_all("table")
    newest, oldest = (row.get_text(" ", strip=True) for row in causes.tbody.find_all("tr"))
    assert "site.crawl" in newest
    assert "URL answered N" in oldest
    assert " 60 " in oldest
    assert "60 in 24 hours" in oldest
    assert len(causes.find_all("svg", class_="spark")) == 2
    rows = letters.tbody.find_all("tr")
    assert len(rows) == 50
    assert other[:8] in rows[0].text
    assert "61 in all" in text_of(page)
    older = operator.open(page.find("a", rel="next")["href"])
    assert len(older.find_all("table")[1].tbody.find_all("tr")) == 11
    for query, total in (
        ("text=NO+SUCH+field", 1),
        ("text=a.gov/5", 11),
        ("queue=site.index", 61),
        ("task=site.crawl", 1),
        ("domain=B.gov", 1),
        ("worker=w2", 1),
        ("reason=exception&after=1h", 1),
        ("before=1h", 60),
        ("after=2000-01-01T00:00&before=2001-01-01", 0),
        ("set=site.dead&exception=KeyError", 61),
    ):
        found = text_of(operator.open(f"/ops/dead?{query}"))
        assert (f"{total} match," in found) if total else ("No dead letter matches" in found), query
    group = causes.tbody.find_all("tr")[1].find("a")["href"]
    assert "60 match" in text_of(operator.open(group))
    assert "expected an age such as 2h" in text_of(operator.open("/ops/dead?after=soon", status=400))
    assert operator.client.get("/ops/dead?task_=x").status_code == 400


def test_a_letter_is_shown_with_its_attempts_and_its_notes(
    operator: OperatorAtPage, mortuary: Mortuary, settings: Settings
) -> None:
    began = time.time() - 3600
    history = {"retry-timeout-ms": 5_000, "retry-max": 3, "current-iteration": 3, "perennial-first-failed-at": began}
    [ident] = mortuary.add(pages(1), failed("the site answered 503", task="site.index", worker="w1"), **history)
    page = operator.open(f"/ops/dead/letter/{ident}")
    attempts = page.find("table").tbody.find_all("tr")
    waits = [row.find_all("td")[1].text for row in attempts]
    assert waits == ["–", "5 s", "10 s", "20 s"]
    assert ["by its retry policy" in row.text for row in attempts] == [False, True, True, False]
    assert len(page.find("svg", class_="attempts").find_all("circle")) == 4
    assert page.find("a", href="/ops/sites/a.gov")
    found = text_of(page)
    assert 'File "/a/b/shop/till.py", line 7, in sell' in found
    assert "retry-timeout-ms 5000" in found
    assert '"url": "https://a.gov/0"' in found
    assert operator.send("/ops/dead/note", letter=f"{DEAD_SET}/{ident}", text="  ask the site's owner ").is_redirect
    found = text_of(operator.open(f"/ops/dead/letter/{ident}"))
    assert "ask the site's owner" in found
    assert (audited(settings)[0].act, audited(settings)[0].subject) == ("note", ident)
    assert operator.send("/ops/dead/note", letter=f"{DEAD_SET}/{ident}", text=" ").status_code == 400
    assert operator.client.get("/ops/dead/letter/no-such-letter").status_code == 400


def test_a_dry_run_changes_nothing_and_a_replay_sends_each_letter_once(
    operator: OperatorAtPage, mortuary: Mortuary, broker: Broker, settings: Settings
) -> None:
    ids = mortuary.add(pages(3))
    mortuary.add(pages(2, "b.gov"))
    preview = operator.send("/ops/dead/acts", verb="dry-replay", scope="all", query="domain=a.gov", budget="fresh")
    assert preview.status_code == 200
    assert "Replay 3 letters?" in preview.text
    assert "exchange site, key site.index" in preview.text
    assert broker.depths([DEAD_SET, "site.index"]) == [5, 0]
    assert audited(settings)[0].act == "log in"
    act = operator.begin(
        verb="replay", scope="marked", letter=[f"{DEAD_SET}/{ids[0]}", f"{DEAD_SET}/{ids[1]}"], why="the site is back"
    )
    assert "2 of 2 replayed." in operator.ended(act)
    assert urls_in(broker, "site.index") == ["https://a.gov/0", "https://a.gov/1"]
    assert [(entry.act, entry.why) for entry in audited(settings)[:2]] == [
        ("replay ended", "the site is back"),
        ("replay letters", "the site is back"),
    ]
    act = operator.begin(verb="replay", scope="all", query="")
    assert "3 of 3 replayed." in operator.ended(act)
    assert broker.depths([DEAD_SET, "site.index"]) == [0, 5]
    assert "0 letters are chosen" in operator.send("/ops/dead/acts", verb="replay", scope="all", query="").text


def test_letters_with_a_wrong_url_are_edited_and_their_history_says_so(
    operator: OperatorAtPage, mortuary: Mortuary, broker: Broker
) -> None:
    [ident] = mortuary.add([{"type": "index", "url": "htps://a.gov/x", "domain": "a.gov"}])
    fields = {"letter": f"{DEAD_SET}/{ident}", "content_type": "application/json"}
    assert "not JSON" in operator.send("/ops/dead/edit", **fields, arguments="{").text
    assert broker.depths([DEAD_SET, "site.index"]) == [1, 0]
    body = {"type": "index", "url": "https://a.gov/x", "domain": "a.gov"}
    act = operator.begin("/ops/dead/edit", **fields, arguments=json.dumps(body), why="a wrong scheme")
    assert "1 of 1 edited and replayed" in operator.ended(act)
    assert broker.depth(DEAD_SET) == 0
    [message] = broker.peek("site.index")
    assert json.loads(message.body) == body
    assert message.headers["perennial-replay-of"] == [ident]
    [change] = message.headers["perennial-replay-changes"]
    assert change.startswith(f"{ident}: body of ")


def test_celery_arguments_are_edited_and_what_celery_adds_stays(
    operator: OperatorAtPage, mortuary: Mortuary, broker: Broker
) -> None:
    embedded = {"callbacks": None, "chain": None}
    headers = {"task": "site.index", "argsrepr": "('htps://a.gov',)", "kwargsrepr": "{}"}
    [ident] = mortuary.add([json.dumps([["htps://a.gov"], {}, embedded]).encode()], None, **headers)
    fields = {"letter": f"{DEAD_SET}/{ident}", "content_type": "application/json"}
    assert "expected [args, kwargs]" in operator.send("/ops/dead/edit", **fields, arguments='{"url": "x"}').text
    operator.ended(operator.begin("/ops/dead/edit", **fields, arguments='[["https://a.gov"], {}]', queue="site.crawl"))
    [message] = broker.peek("site.crawl")
    assert json.loads(message.body) == [["https://a.gov"], {}, embedded]
    assert "argsrepr" not in message.headers


def test_unroutable_letters_are_redirected_to_known_queues_only(
    operator: OperatorAtPage, broker: Broker, settings: Settings
) -> None:
    for page in pages(3):
        broker.post(json.dumps(page).encode(), key="misspelt")
    query = {"scope": "all", "query": "reason=unroutable"}
    stays = operator.ended(operator.begin(verb="replay", **query))
    assert "0 of 3 replayed" in stays
    assert "no queue is bound for key" in stays
    for fields in (
        {"queue": "elsewhere"},
        {"exchange": "site", "routing_key": "misspelt"},
        {"queue": "site.index", "exchange": "site", "routing_key": "index"},
        {"exchange": "nowhere", "routing_key": "index"},
        {"queue": "site.tick"},
        {},
    ):
        assert operator.send("/ops/dead/acts", verb="redirect", **query, **fields).status_code == 400, fields
    assert broker.depth(DEAD_SET) == 3
    preview = operator.send("/ops/dead/acts", verb="dry-redirect", **query, queue="site.crawl").text
    assert "exchange site, key site.crawl" in preview
    [first, *_] = [row["value"] for row in operator.open("/ops/dead").find_all("input", attrs={"name": "letter"})]
    operator.ended(operator.begin(verb="redirect", scope="marked", letter=first, exchange="site", routing_key="index"))
    operator.ended(operator.begin(verb="redirect", **query, queue="site.crawl"))
    assert broker.depths([DEAD_SET, "site.index", "site.crawl"]) == [0, 1, 2]
    audit = (settings.data_dir / "dead" / "audit.jsonl").read_text().splitlines()
    assert "to exchange 'site' with key 'site.crawl'" in json.loads(audit[-1])["changes"]


def test_a_drop_asks_first_exports_and_can_be_downloaded(
    operator: OperatorAtPage, mortuary: Mortuary, broker: Broker
) -> None:
    mortuary.add(pages(2))
    preview = operator.send("/ops/dead/acts", verb="drop", scope="all", query="")
    assert "Drop 2 letters?" in preview.text
    assert broker.depth(DEAD_SET) == 2
    act = operator.begin(verb="drop", scope="all", query="", confirmed="yes")
    operator.ended(act)
    assert broker.depth(DEAD_SET) == 0
    export = operator.open(act).find("a", href=lambda href: href and "/exports/" in href)["href"]
    lines = operator.client.get(export).text.splitlines()
    assert [json.loads(line)["set"] for line in lines] == [DEAD_SET, DEAD_SET]
    for name in ("audit.jsonl", "..%2faudit.jsonl", "dropped-20260101T000000.000000Z.jsonl"):
        assert operator.client.get(f"/ops/dead/exports/{name}").status_code == 404


def test_an_operator_that_may_read_sees_no_form_and_each_attempt_is_refused_and_audited(
    operator: OperatorAtPage, mortuary: Mortuary, broker: Broker, settings: Settings
) -> None:
    [ident] = mortuary.add(pages(1))
    letter = f"{DEAD_SET}/{ident}"
    operator.log_in(READ_PASSWORD, "lee")
    assert not operator.open("/ops/dead").find("form", action="/ops/dead/acts")
    assert len(operator.open(f"/ops/dead/letter/{ident}").find_all("form", method="post")) == 1
    for path, fields in (
        ("acts", {"verb": "replay", "scope": "marked", "letter": letter}),
        ("acts", {"verb": "redirect", "letter": letter, "queue": "site.crawl"}),
        ("acts", {"verb": "drop", "letter": letter, "confirmed": "yes"}),
        ("edit", {"letter": letter, "arguments": "{}"}),
        ("note", {"letter": letter, "text": "a note"}),
    ):
        assert operator.send(f"/ops/dead/{path}", **fields).status_code == 403, path
    entries = [entry for entry in audited(settings) if entry.operator == "lee" and "refused" in entry.result]
    assert {entry.act for entry in entries} == {
        "replay letters",
        "redirect letters",
        "drop letters",
        "edit letters",
        "note",
    }
    assert broker.depths([DEAD_SET, "site.index"]) == [1, 0]
