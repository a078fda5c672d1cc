"""Dead letters on the operations page and in its API, over real HTTP, with a real RabbitMQ."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from selectolax.lexbor import LexborHTMLParser

from app.broker.dead_letters import reading
from app.broker.dead_letters.letters import EVERYTHING
from app.broker.failure import Failure
from app.broker.headers import REPLAY_HISTORY
from app.broker.publishing import Publisher
from app.broker.worker.failures import carry_out_one
from app.messages.dead_sets import StoredReplayJournal, dead_sets
from app.operations.audit import AuditEntry, AuditLog
from app.storage.open import create_store, store_of
from app.topology.queues import DEAD_SET
from app.topology.retry_policies import site_policy
from config.settings import Settings
from tests.support.broker import Broker
from tests.support.command import perennial
from tests.support.corner import environment_of
from tests.support.dead import failed_delivery, failure
from tests.support.operators import VARIABLES, OperatorAtPage, operated, text_of, with_operators
from tests.support.proxy import Proxy
from tests.support.waiting import eventually
from tests.support.web import web_process
from tests.support.worker import Worker

pytestmark = pytest.mark.integration


@pytest.fixture
def operator(declared: Settings) -> Iterator[OperatorAtPage]:
    with operator_of(declared) as operator:
        yield operator


@contextmanager
def operator_of(settings: Settings) -> Iterator[OperatorAtPage]:
    with operated(with_operators(settings)) as client:
        yield OperatorAtPage(client)


def failed(message: str, *, line: int = 7, ago: float = 60.0, **fields: Any) -> Failure:
    return failure(line, at=time.time() - ago, permanent=True, message=message, **fields)


DeadLetter = Callable[..., list[str]]


@pytest.fixture
def dead_letter(declared: Settings, publisher: Publisher) -> DeadLetter:
    """Return a function that dead-letters messages of `site.index` as a worker does, and returns their ids."""

    def add(bodies: Sequence[Mapping[str, Any] | bytes], why: Failure | None = None, **headers: Any) -> list[str]:
        ids = []
        for body in bodies:
            delivery = failed_delivery(body, "site.index", **headers)
            decision = site_policy(declared).decide(delivery, why or failed("the site answered 503"))
            carry_out_one(decision, delivery, publisher=publisher)
            ids.append(str(decision.headers["perennial-dead-id"]))  # type: ignore[union-attr]
        return ids

    return add


def pages(number: int, domain: str = "a.gov") -> list[dict[str, str]]:
    return [{"type": "index", "url": f"https://{domain}/{each}", "domain": domain} for each in range(number)]


def audited(settings: Settings) -> list[AuditEntry]:
    return list(AuditLog(store_of(settings)).entries())


def urls_in(broker: Broker, queue: str) -> list[str]:
    return sorted(json.loads(message.body)["url"] for message in broker.peek(queue))


def test_letters_are_grouped_by_cause_filtered_and_paged(operator: OperatorAtPage, dead_letter: DeadLetter) -> None:
    for number, body in enumerate(pages(60)):
        dead_letter([body], failed(f"https://a.gov/{number} answered 503", task="site.index", ago=3 * 3600))
    worker = "w" * 255
    [other] = dead_letter(pages(1, "b.gov"), failed("no such field", line=9, task="site.crawl", worker=worker))
    page = operator.open("/ops/dead")
    causes, letters = page.select("table")
    newest, oldest = (row.get_text(" ", strip=True) for row in causes.select("tbody tr"))
    assert "site.crawl" in newest
    assert "URL answered N" in oldest
    assert " 60 " in oldest
    assert "60 in 24 hours" in oldest
    assert len(causes.select("svg.spark")) == 2
    rows = letters.select("tbody tr")
    assert len(rows) == 50
    assert other[:8] in rows[0].text
    assert "61 in all" in text_of(page)
    fields = {str(field["name"]) for field in page.select("form[action='/ops/dead/acts'] [name]")}
    assert {"verb", "scope", "letter", "query", "budget", "canary", "wait", "rate", "queue", "why"} <= fields
    older = operator.open(str(page.select("a[rel=next]")[0]["href"]))
    assert len(older.select("table")[1].select("tbody tr")) == 11
    for query, total in (
        ("text=NO+SUCH+field", 1),
        ("text=a.gov/5", 11),
        ("queue=site.index", 61),
        ("task=site.crawl", 1),
        ("domain=B.gov", 1),
        (f"worker={worker}", 1),
        ("reason=exception&after=1h", 1),
        ("before=1h", 60),
        ("after=2000-01-01T00:00&before=2001-01-01", 0),
        ("set=site.dead&exception=KeyError", 61),
    ):
        found = text_of(operator.open(f"/ops/dead?{query}"))
        assert (f"{total} match," in found) if total else ("No dead letter matches" in found), query
    group = str(causes.select("tbody tr a")[1]["href"])
    assert "60 match" in text_of(operator.open(group))
    assert "expected an age such as 2h" in text_of(operator.open("/ops/dead?after=soon", status=400))
    assert operator.client.get("/ops/dead?task_=x").status_code == 400


def test_a_letter_is_shown_with_its_attempts_and_its_notes(
    operator: OperatorAtPage, dead_letter: DeadLetter, settings: Settings
) -> None:
    began = time.time() - 3600
    history = {"retry-timeout-ms": 5_000, "retry-max": 3, "current-iteration": 3, "perennial-first-failed-at": began}
    [ident] = dead_letter(pages(1), failed("the site answered 503", task="site.index", worker="w1"), **history)
    page = operator.open(f"/ops/dead/letter/{ident}")
    attempts = page.select("table")[0].select("tbody tr")
    waits = [row.select("td")[1].text for row in attempts]
    assert waits == ["–", "5 s", "10 s", "20 s"]
    assert ["by its retry policy" in row.text for row in attempts] == [False, True, True, False]
    assert len(page.select("svg.attempts circle")) == 4
    assert page.select("a[href='/ops/sites/a.gov']")
    found = text_of(page)
    assert 'File "/a/b/shop/till.py", line 7, in sell' in found
    assert "retry-timeout-ms 5000" in found
    assert '"url": "https://a.gov/0"' in found
    assert operator.send(f"/ops/dead/letters/{ident}/notes", text="  ask the site's owner ").is_redirect
    found = text_of(operator.open(f"/ops/dead/letter/{ident}"))
    assert "ask the site's owner" in found
    assert (audited(settings)[0].act, audited(settings)[0].subject) == ("note", ident)
    assert operator.send(f"/ops/dead/letters/{ident}/notes", text=" ").status_code == 400
    assert operator.client.get("/ops/dead/letter/no-such-letter").status_code == 404


def test_a_dry_run_changes_nothing_and_a_replay_sends_each_letter_once(
    operator: OperatorAtPage, dead_letter: DeadLetter, broker: Broker, settings: Settings
) -> None:
    ids = dead_letter(pages(3))
    dead_letter(pages(2, "b.gov"))
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
    # The page of a cause offers this choice.
    act = operator.begin(verb="replay", scope="marked-or-all", query="domain=a.gov")
    assert "1 of 1 replayed." in operator.ended(act)
    # No worker reports the outcome of the first of them in time.
    act = operator.begin(verb="replay", scope="all", query="", canary="yes", wait="0.3", rate="50")
    canary = operator.ended(act)
    assert "stopped: 1 of 2 replayed" in canary, canary
    assert audited(settings)[1].details["canary"] == 0.3
    act = operator.begin(verb="replay", scope="all", query="")
    assert "1 of 1 replayed." in operator.ended(act)
    assert broker.depths([DEAD_SET, "site.index"]) == [0, 5]
    assert "0 letters are chosen" in operator.send("/ops/dead/acts", verb="replay", scope="all", query="").text


def test_letters_with_a_wrong_url_are_edited_and_their_history_says_so(
    operator: OperatorAtPage, dead_letter: DeadLetter, broker: Broker
) -> None:
    [ident] = dead_letter([{"type": "index", "url": "htps://a.gov/x", "domain": "a.gov"}])
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
    operator: OperatorAtPage, dead_letter: DeadLetter, broker: Broker
) -> None:
    embedded = {"callbacks": None, "chain": None}
    headers = {"task": "site.index", "argsrepr": "('htps://a.gov',)", "kwargsrepr": "{}"}
    [ident] = dead_letter([json.dumps([["htps://a.gov"], {}, embedded]).encode()], None, **headers)
    fields = {"letter": f"{DEAD_SET}/{ident}", "content_type": "application/json"}
    assert "expected [args, kwargs]" in operator.send("/ops/dead/edit", **fields, arguments='{"url": "x"}').text
    operator.ended(operator.begin("/ops/dead/edit", **fields, arguments='[["https://a.gov"], {}]', queue="site.crawl"))
    [message] = broker.peek("site.crawl")
    assert json.loads(message.body) == [["https://a.gov"], {}, embedded]
    assert "argsrepr" not in message.headers


def test_unroutable_letters_are_redirected_to_declared_queues_only(
    operator: OperatorAtPage, broker: Broker, settings: Settings
) -> None:
    for body in pages(3):
        broker.post(json.dumps(body).encode(), key="misspelt")
    query = {"scope": "all", "query": "reason=unroutable"}
    stays = operator.ended(operator.begin(verb="replay", **query))
    assert "0 of 3 replayed" in stays
    assert "no queue is bound for exchange" in stays
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
    first = operator.open("/ops/dead").select("input[name=letter]")[0]["value"]
    operator.ended(operator.begin(verb="redirect", scope="marked", letter=first, exchange="site", routing_key="index"))
    operator.ended(operator.begin(verb="redirect", **query, queue="site.crawl"))
    assert broker.depths([DEAD_SET, "site.index", "site.crawl"]) == [0, 1, 2]
    audit = (settings.data_dir / "dead" / "audit.jsonl").read_text().splitlines()
    assert "to exchange 'site' with key 'site.crawl'" in json.loads(audit[-1])["changes"]


def test_a_drop_asks_first_exports_and_can_be_downloaded(
    operator: OperatorAtPage, dead_letter: DeadLetter, broker: Broker
) -> None:
    dead_letter(pages(2))
    preview = operator.send("/ops/dead/acts", verb="drop", scope="all", query="")
    assert "Drop 2 letters?" in preview.text
    assert broker.depth(DEAD_SET) == 2
    act = operator.begin(verb="drop", scope="all", query="", confirmed="yes")
    operator.ended(act)
    assert broker.depth(DEAD_SET) == 0
    [export] = (str(link["href"]) for link in operator.open(act).select("a[href*='/exports/']"))
    lines = operator.client.get(export).text.splitlines()
    assert [json.loads(line)["set"] for line in lines] == [DEAD_SET, DEAD_SET]
    for name in ("audit.jsonl", "..%2faudit.jsonl", "dropped-20260101T000000.000000Z.jsonl"):
        assert operator.client.get(f"/ops/dead/exports/{name}").status_code == 404


def test_the_api_can_do_what_the_page_can(
    operator: OperatorAtPage, dead_letter: DeadLetter, broker: Broker, settings: Settings
) -> None:
    ids = dead_letter(pages(6), failed("the site answered 503", task="site.index"))
    api = operator.api
    [group] = api("GET", "/dead/groups")
    assert (group["count"], group["task"], group["error"]) == (6, "site.index", "the site answered N")
    listed = api("GET", "/dead/letters", params={"group": group["group"], "limit": 2})
    assert (listed["total"], len(listed["letters"])) == (6, 2)
    assert api("GET", f"/dead/letters/{ids[0]}")["record"]["body"] == json.dumps(pages(1)[0])
    dry = api("POST", "/dead/replay", json={"filters": {"task": "site.index"}, "dry_run": True})
    assert (dry["total"], broker.depth(DEAD_SET)) == (6, 6)
    for wrong in ({}, {"ids": ["x"], "filters": {}}, {"filters": {"tasks": "x"}}, {"filters": {}, "rate": 0}, {"x": 1}):
        assert api("POST", "/dead/replay", json=wrong, status=400)["type"] == "/problems/invalid", wrong

    def done(act: dict[str, Any]) -> dict[str, Any]:
        """Wait until an act is done, and return it: the API answers while a long one goes on."""

        def found() -> dict[str, Any] | None:
            present: dict[str, Any] = api("GET", f"/acts/{act['id']}")
            return present if present["phase"] == "done" else None

        return eventually(found, "the act is done") or {}

    ref = f"{DEAD_SET}/{ids[0]}"
    # A letter that is named twice counts once.
    act = api("POST", "/dead/replay", json={"ids": [ref] * 2, "budget": "fresh", "why": "repaired"})
    assert (act["total"], act["subject"]) == (1, ref)
    done(act)
    redirected = {"ids": [f"{DEAD_SET}/{ids[1]}"], "to": {"queue": "site.crawl"}}
    done(api("POST", "/dead/redirect", json=redirected))
    edit = {"arguments": json.dumps({"type": "index", "url": "https://a.gov/new"})}
    done(api("POST", f"/dead/letters/{ids[2]}/edit", json=edit))
    assert api("POST", f"/dead/letters/{ids[3]}/notes", json={"text": "ask"})[0]["text"] == "ask"
    slow = api("POST", "/dead/replay", json={"filters": {}, "rate": 0.5})
    api("POST", f"/acts/{slow['id']}/cancel", json={})
    eventually(lambda: api("GET", f"/acts/{slow['id']}")["phase"] == "cancelled", "it is cancelled")
    api("POST", f"/acts/{slow['id']}/resume", json={}, status=400)
    left = broker.depth(DEAD_SET)
    dropped = done(api("POST", "/dead/drop", json={"filters": {}}))
    assert (dropped["done"], dropped["total"]) == (left, left)
    assert len((settings.data_dir / "dead" / dropped["export"]).read_text().splitlines()) == left
    assert [each["id"] for each in api("GET", "/acts")][:2] == [dropped["id"], slow["id"]]
    api("GET", "/acts/20260101T000000.000000-00000000", status=404)
    api("GET", f"/dead/letters/{ids[0]}", status=404)


def test_without_a_broker_pages_and_api_say_so(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, broker_url=SecretStr("amqp://127.0.0.1:1"))
    create_store(settings.store)
    with operator_of(settings) as operator:
        assert "amqp://127.0.0.1:1" in text_of(operator.open("/ops/dead", status=503))
        assert operator.send("/ops/dead/acts", verb="replay", scope="all", query="").status_code == 503
        assert operator.api("GET", "/dead/groups", status=503)["type"] == "/problems/unavailable"


# Long acts


def test_letters_that_died_again_after_their_replay_are_counted_and_found_by_the_act(
    operator: OperatorAtPage, dead_letter: DeadLetter
) -> None:
    [ident, _] = dead_letter(pages(2))
    act = operator.begin(verb="replay", scope="all", query="")
    assert "Died again none of its letters" in operator.ended(act)
    dead_letter(pages(1), failed("it failed again"), **{REPLAY_HISTORY: [ident]})
    dead_letter(pages(3, "b.gov"))
    assert "Died again 1 of its letters" in text_of(operator.open(act))
    again = text_of(operator.open(f"/ops/dead?act={act.rpartition('/')[2]}"))
    assert "1 match," in again
    assert "it failed again" in again
    assert operator.client.get("/ops/dead?act=20260101T000000.000000-00000000").status_code == 200


def test_an_act_is_paused_continued_and_cancelled_after_its_present_letter(
    operator: OperatorAtPage, dead_letter: DeadLetter, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead_letter(pages(50))
    act = operator.begin(verb="replay", scope="all", query="", rate="1")
    eventually(lambda: broker.depth("site.index") >= 2, "some are replayed")
    with monkeypatch.context() as patch:
        patch.setattr(reading, "LEASE_TIMEOUT", 0.5)
        busy = operator.open("/ops/dead", status=503)
    assert busy.select(f"a[href='{act}']")
    assert operator.send(f"{act}/pause", why="wait for the site").is_redirect
    paused = operator.ended(act)
    done = broker.depth("site.index")
    assert f"paused: {done} of 50 replayed; the others are in the dead set" in paused
    assert f"{50 - done} in all" in text_of(operator.open("/ops/dead"))
    assert operator.send(f"{act}/pause").status_code == 400
    assert operator.send(f"{act}/resume").is_redirect
    eventually(lambda: broker.depth("site.index") >= done + 2, "it continues")
    assert operator.send(f"{act}/cancel").is_redirect
    assert "cancelled: " in operator.ended(act)
    assert operator.send(f"{act}/resume").status_code == 400
    dead, replayed = broker.depths([DEAD_SET, "site.index"])
    assert dead + replayed == 50
    assert len(set(urls_in(broker, "site.index"))) == replayed < 50


def test_two_operators_at_once_replay_each_letter_once(
    operator: OperatorAtPage, dead_letter: DeadLetter, broker: Broker
) -> None:
    refs = [f"{DEAD_SET}/{ident}" for ident in dead_letter(pages(30))]
    with httpx.Client(base_url=operator.client.base_url, timeout=30) as client:
        other = OperatorAtPage(client)
        other.log_in(name="lee")
        acts = [operator.begin(verb="replay", letter=refs, rate="10")]
        eventually(lambda: broker.depth("site.index"), "the first operator replays")
        acts.append(other.begin(verb="replay", letter=[*refs, *refs]))
        ended = [operator.ended(act) for act in acts]
    assert "30 of 30 replayed." in ended[0]
    assert "0 of 30 replayed." in ended[1]
    assert "No longer there 30" in ended[1]
    assert broker.depths([DEAD_SET, "site.index"]) == [0, 30]


@contextmanager
def operator_of_process(settings: Settings, log: Path) -> Iterator[tuple[Worker, OperatorAtPage]]:
    """Run the web process for the block, with an operator that is logged in."""
    environment = {**environment_of(settings), **VARIABLES, "WEB_RATE_LIMIT": "1000000/second"}
    with web_process(environment, log) as (process, base), httpx.Client(base_url=base, timeout=30) as client:
        operator = OperatorAtPage(client)
        operator.log_in()
        yield process, operator


def test_after_a_killed_web_process_the_page_says_what_happened_and_the_act_continues(
    declared: Settings, dead_letter: DeadLetter, broker: Broker, tmp_path: Path
) -> None:
    dead_letter(pages(60))
    with operator_of_process(declared, tmp_path / "first.log") as (process, operator):
        act = operator.begin(verb="replay", scope="all", query="", rate="10")
        eventually(lambda: broker.depth("site.index") >= 15, "some are replayed")
        process.kill()
    eventually(lambda: broker.consumers(DEAD_SET) == 0, "the broker has the other letters back")
    replayed, left = broker.depths(["site.index", DEAD_SET])
    # One that was confirmed, and not yet removed, is in both.
    assert replayed + left in (60, 61)
    with operator_of_process(declared, tmp_path / "second.log") as (_, operator):
        interrupted = eventually(
            lambda: text if "interrupted" in (text := text_of(operator.open(act))) else "",
            "the new process notices",
        )
        assert f"interrupted: {60 - left} of 60 replayed; the others are in the dead set" in interrupted
        assert operator.send(f"{act}/resume").is_redirect
        require_each_sent_once(operator, act, broker, number=60)


def test_a_letter_that_an_interrupted_replay_may_have_sent_is_shown_as_such_and_stays(
    operator: OperatorAtPage, declared: Settings, dead_letter: DeadLetter, broker: Broker
) -> None:
    first, second = dead_letter(pages(2))
    StoredReplayJournal(store_of(declared)).note(DEAD_SET, [first])
    shown = [text_of(operator.open(f"/ops/dead/letter/{ident}")) for ident in (first, second)]
    assert ["may have sent the letter already" in text for text in shown] == [True, False]
    answers = [operator.api("GET", f"/dead/letters/{ident}")["in_doubt"] for ident in (first, second)]
    assert answers == [True, False]
    printed = perennial(environment_of(declared), "dead", "show", first)
    assert "may have sent it already" in printed.stderr
    assert "1 of 2 replayed" in operator.ended(operator.begin(verb="replay", scope="all", query=""))
    assert broker.depths([DEAD_SET, "site.index"]) == [1, 1]
    dropped = operator.begin(verb="drop", letter=[f"{DEAD_SET}/{first}"], confirmed="yes")
    assert "1 of 1 dropped" in operator.ended(dropped)


def require_each_sent_once(operator: OperatorAtPage, act: str, broker: Broker, *, number: int) -> None:
    """Assert that an interrupted replay sent each letter once, or left it in doubt, and that `again` sends those."""
    ended = operator.ended(act)
    urls, in_doubt = urls_in(broker, "site.index"), urls_in(broker, DEAD_SET)
    assert f"{number - len(in_doubt)} of {number} replayed" in ended
    assert ("an interrupted replay may have sent it already" in ended) == bool(in_doubt)
    assert len(in_doubt) <= 2
    assert len(urls) == len(set(urls))
    assert sorted({*urls, *in_doubt}) == sorted(body["url"] for body in pages(number))
    if in_doubt:
        assert operator.ended(operator.begin(verb="replay", scope="all", query="", again="yes"))
        assert broker.depth(DEAD_SET) == 0


def test_after_a_loss_of_the_broker_a_replay_is_continued_and_no_letter_is_lost(
    declared: Settings, dead_letter: DeadLetter, broker: Broker
) -> None:
    dead_letter(pages(40))
    with closing(Proxy(declared.broker)) as proxy:
        settings = declared.model_copy(update={"broker_url": SecretStr(proxy.url)})
        with operator_of(settings) as operator:
            act = operator.begin(verb="replay", scope="all", query="", rate="10")
            eventually(lambda: broker.depth("site.index") >= 10, "some are replayed")
            proxy.cut(reopen=False)
            ended = operator.ended(act)
            eventually(lambda: broker.consumers(DEAD_SET) == 0, "the broker has the other letters back")
            # The acknowledgement of the last one may have been lost with the connection: it is in the dead set again.
            replayed = 40 - broker.depth(DEAD_SET)
            texts = [f"stopped: {each} of 40 replayed; the others are in the" for each in (replayed, replayed + 1)]
            assert any(text in ended for text in texts), ended
            proxy.reopen()
            assert operator.send(f"{act}/resume").is_redirect
            require_each_sent_once(operator, act, broker, number=40)


# Hostile letters

#: Texts that would change a page, a terminal or an address if they were more than text.
HOSTILE = (
    "</td></tr></table><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' autofocus onfocus='alert(1)",
    "</textarea></pre><form action=//evil.example><button>",
    "{{ 7 * 7 }}{% raw %}",
    "\u202eright to left\u2066\u200f\u061c",
    "nul \0 escape \x1b[31m bell \x07 line\r\nend \x85\u2028\ufeff",
    "half a pair \ud83d",
    "&lt;b&gt; &#x202e; &copy",
    "javascript:alert(1)",
    "<!--<![CDATA[",
    "\u0301\u0489\u20e3" * 50,
)
#: A harmless text for each hostile one.
HARMLESS = tuple(f"word {chr(97 + number)}" for number in range(len(HOSTILE)))


def post_letters(broker: Broker, texts: Sequence[str], number: int) -> None:
    """Publish messages to the dead set, with texts in every field that a sender can write."""
    now = time.time()
    for each in range(number):
        text, other = texts[each % len(texts)], texts[(each + 5) % len(texts)]
        raw = text.encode(errors="surrogatepass")
        headers = {
            "perennial-reason": text,
            "perennial-queue": other,
            "perennial-task": text,
            "perennial-exception": other,
            "perennial-message": text,
            "perennial-traceback": f"Traceback\n{text}\n",
            "perennial-worker": other,
            "perennial-failed-at": now - each,
            "perennial-first-failed-at": now - each - 100,
            "perennial-attempts": 3,
            "perennial-dead-id": text,
            "perennial-replay-of": [text, other],
            "perennial-replay-changes": [text],
            "x-death": [{"queue": text, "reason": other, "count": 7, "exchange": text}],
            "raw": raw + b"\xff\xfe",
            "nested": {"a": [text, {"b": raw}], "large": text * 300},
            text.replace("\0", "")[:40] or "empty": text,
        }
        body = [
            json.dumps({"type": text, "url": text, "domain": other}).encode(),
            raw + b"\xff\xc0",
            json.dumps([[text], {"url": other}, {}]).encode(),
            b"[" * 50,
        ][each % 4]
        broker.post(body, exchange=DEAD_SET, key=other[:40].encode(errors="replace").decode(), headers=headers)


def skeleton(html: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the elements of a page, each with the names of its attributes."""
    root = LexborHTMLParser(html).root
    return [(str(each.tag), tuple(sorted(each.attributes))) for each in root.traverse()] if root else []


def seen_pages(operator: OperatorAtPage, number: int) -> dict[str, list[str]]:
    """Return the HTML of the list, of a preview and of a number of letters and causes, by kind."""
    listed = [operator.client.get(f"/ops/dead?page={number}") for number in (1, 2)]
    page = LexborHTMLParser(listed[0].text)
    links, causes = (page.css(f"a[href^='{path}']") for path in ("/ops/dead/letter/", "/ops/dead?group="))
    shown = [operator.client.get(str(link.attributes["href"])) for link in links[:number]]
    filtered = [operator.client.get(str(link.attributes["href"])) for link in causes[: number // 2]]
    preview = operator.send("/ops/dead/acts", verb="dry-replay", scope="all", query="")
    found = {"list": listed, "letter": shown, "cause": filtered, "preview": [preview]}
    for answer in (each for answers in found.values() for each in answers):
        assert answer.status_code == 200, answer.text
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]", answer.text)
    return {kind: [answer.text for answer in answers] for kind, answers in found.items()}


#: Twelve letters in a row have every text in every field, and every form of body.
SHOWN = 12


@pytest.mark.parametrize("number", [60, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(1_200)])])
def test_hostile_letters_change_nothing_on_the_pages_but_text(
    operator: OperatorAtPage, declared: Settings, broker: Broker, number: int
) -> None:
    skeletons = []
    for texts in (HARMLESS, HOSTILE):
        post_letters(broker, texts, number)
        skeletons.append({kind: list(map(skeleton, html)) for kind, html in seen_pages(operator, SHOWN).items()})
        listed = operator.api("GET", "/dead/letters", params={"limit": 1_000})
        assert listed["total"] == number
        for letter in listed["letters"][:SHOWN]:
            operator.api("GET", f"/dead/letters/{letter['id']}")
        if texts is HARMLESS:
            # Reading has moved the oldest letters of a long set to shards.
            assert dead_sets(declared).forget(EVERYTHING) == number
    act = operator.begin(verb="drop", scope="all", query="", confirmed="yes")
    assert f"{number:,} of {number:,} dropped" in operator.ended(act, seconds=300)
    harmless, hostile = skeletons
    for kind, pages_of_kind in harmless.items():
        for one, other in zip(pages_of_kind, hostile[kind], strict=True):
            assert not Counter(other) - Counter(one), kind
            assert one == other, kind
