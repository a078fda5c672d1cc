"""Messages of delay queues on the operations page: what is shown, and acts that end a wait and lose nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import httpx
import pytest
from pydantic import SecretStr

from app.broker.delayed_messages import DelayQueue, move, peek
from app.broker.delivery import Delivery
from app.broker.failure import Failure
from app.broker.outgoing import Outgoing
from app.broker.policies.base import Retry, replacement_of
from app.broker.policies.delay_queues import DelayQueues
from app.broker.publishing import Publisher
from app.crawl.frontier.frontier import Frontier
from app.crawl.frontier.values import Crawl, FrontierUrl
from app.crawl.urls import canonical_key
from app.messages.envelopes import site_message
from app.operations.audit import AuditEntry, AuditLog
from app.operations.waiting import peek_cache
from app.redis_state.client import get_redis
from app.storage.open import store_of
from app.topology.retry_policies import retry_policies, site_policy, subscriber_policy
from config.settings import Settings
from tests.support.broker import Broker
from tests.support.operators import api_headers, send_form, with_operators
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

HOSTILE = "<script>alert('x')</script>\x1b[31m\u202egnp"
QUEUE = "site.delay.600000"


@pytest.fixture
def operable(declared: Settings) -> Iterator[Settings]:
    peek_cache.kept.clear()
    yield with_operators(declared, retry_timeout_ms=600_000)
    peek_cache.kept.clear()


def failed(
    settings: Settings, number: int, *, error: str = "503 from the site", kind: str = "page"
) -> tuple[DelayQueues, Retry, Delivery]:
    """Return the policy's decision on a message about a page that failed once."""
    policy = site_policy(settings)
    sent = site_message(kind, url=f"https://site.example/{number}", domain="site.example", crawl_id="c")
    delivery = Delivery(
        body=sent.body,
        headers=sent.headers,
        properties={"message_id": f"m{number}"},
        content_type="application/json",
        content_encoding="utf-8",
        queue=f"site.{kind}",
        routing_key=kind,
        exchange="site",
    )
    failure = Failure(reason="server-error", exception="ServerError", message=error, at=time.time() - 5)
    decision = policy.decide(delivery, failure)
    assert isinstance(decision, Retry)
    return policy, decision, delivery


def let_wait(settings: Settings, publisher: Publisher, number: int, **options: str) -> None:
    for each in range(number):
        _, decision, delivery = failed(settings, each, **options)
        publisher.declare([decision.queue])
        message = replacement_of(decision, delivery)
        assert message is not None
        publisher.publish([message])


def acts(settings: Settings) -> list[AuditEntry]:
    return [each for each in AuditLog(store_of(settings)).entries() if each.act.startswith("waiting")]


def ids_of(client: httpx.Client) -> list[str]:
    answer = client.get("/api/v1/ops/waiting", params={"queue": QUEUE}, headers=api_headers())
    return [each["id"] for each in answer.json()["messages"]]


def test_a_waiting_message_is_shown_with_its_reason_and_reading_changes_nothing(
    operable: Settings, client: httpx.Client, publisher: Publisher, broker: Broker
) -> None:
    let_wait(operable, publisher, 2, error=HOSTILE)
    _, decision, delivery = failed(operable, 0, error=HOSTILE)
    hostile = replacement_of(decision, replace(delivery, body=delivery.body.replace(b"/0", rb"/\u202e\ud800")))
    assert hostile is not None
    publisher.publish([hostile])
    page = client.get("/ops/waiting")
    assert QUEUE in page.text
    opened = client.get("/ops/waiting", params={"queue": QUEUE}).text
    assert "https://site.example/0" in opened
    assert "1 of 6" in opened
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;" in opened
    assert "<script>alert" not in opened
    assert r"https://site.example/\u202e\ud800" in opened
    assert not {"\u202e", "\x1b"} & set(opened)
    assert "https://site.example/0" in client.get("/ops/waiting", params={"queue": QUEUE, "domain": "SITE"}).text
    assert "No message that was read matches" in client.get("/ops/waiting", params={"queue": QUEUE, "task": "x"}).text
    assert broker.depth(QUEUE) == 3
    assert [each.delivery_info["redelivered"] for each in broker.peek(QUEUE)] == [True] * 3
    eventually(lambda: broker.depth(QUEUE) == 3, "the broker has them back")
    bodies = [each.delivery.body for each in peek(operable.broker, QUEUE)]
    assert [b"/0" in bodies[0], b"/1" in bodies[1], b"u202e" in bodies[2]] == [True] * 3


def test_opening_the_page_again_does_not_read_the_queue_again(
    operable: Settings, client: httpx.Client, publisher: Publisher
) -> None:
    let_wait(operable, publisher, 1)
    for _ in range(5):
        assert client.get("/ops/waiting", params={"queue": QUEUE}).status_code == 200
    assert [each.times_read for each in peek(operable.broker, QUEUE)] == [1]


def count_reads(settings: Settings, broker: Broker) -> int:
    """Look at the only message of the queue, and return how often that was done."""
    eventually(lambda: broker.depth(QUEUE) == 1, "the message is back")
    (waiting,) = peek(settings.broker, QUEUE)
    return waiting.times_read


def test_a_queue_that_was_read_often_is_not_read_again(
    operable: Settings, client: httpx.Client, publisher: Publisher, broker: Broker
) -> None:
    let_wait(operable, publisher, 1)
    eventually(lambda: count_reads(operable, broker) >= 10, "it was read ten times")
    eventually(lambda: broker.depth(QUEUE) == 1, "the message is back")
    assert "not read again now" in client.get("/ops/waiting", params={"queue": QUEUE}).text
    before = count_reads(operable, broker)
    for _ in range(20):
        client.get("/api/v1/ops/waiting", params={"queue": QUEUE}, headers=api_headers())
    assert count_reads(operable, broker) == before + 1


def test_send_now_brings_the_chosen_message_to_its_queue_once_with_the_budget_that_is_left(
    operable: Settings, client: httpx.Client, publisher: Publisher, broker: Broker
) -> None:
    let_wait(operable, publisher, 3)
    client.get("/ops/waiting", params={"queue": QUEUE})
    chosen = ids_of(client)[1]
    answer = send_form(client, "/ops/waiting/end", queue=QUEUE, act="send", ids=chosen, why="the site is back")
    assert answer.status_code == 303
    assert "1 sent to the work queue; 2 wait" in client.get(answer.headers["location"]).text
    (arrived,) = broker.take("site.page")
    assert "site.example/1" in str(arrived.body)
    assert arrived.headers["current-iteration"] == 1
    assert arrived.headers.get("x-delivery-count", 0) == 0
    assert broker.depth(QUEUE) == 2
    (entry,) = acts(operable)
    assert (entry.act, entry.subject, entry.why) == ("waiting send now", QUEUE, "the site is back")
    assert entry.result == "1 moved, 2 left"
    # The form may be sent twice: the message has left.
    assert send_form(client, "/ops/waiting/end", queue=QUEUE, act="send", ids=chosen).status_code == 303
    assert broker.depth("site.page") == 0


def test_a_whole_queue_goes_to_the_dead_set_from_where_it_can_be_replayed(
    operable: Settings, client: httpx.Client, publisher: Publisher, broker: Broker
) -> None:
    let_wait(operable, publisher, 60)
    answer = send_form(client, "/ops/waiting/end", queue=QUEUE, act="dead", every="true", why="a trap")
    assert "60 sent to the dead set; 0 wait" in client.get(answer.headers["location"]).text
    assert broker.depths([QUEUE, "site.dead"]) == [0, 60]
    letter = broker.peek("site.dead")[0]
    assert letter.headers["perennial-reason"] == "by-operator"
    assert letter.headers["perennial-queue"] == "site.page"
    assert letter.headers["perennial-attempts"] == 1
    assert letter.headers["perennial-message"] == "kim ended its wait: a trap"


def test_a_crawl_does_not_wait_for_a_page_that_an_operator_sent_to_the_dead_set(
    operable: Settings, client: httpx.Client, publisher: Publisher, broker: Broker
) -> None:
    frontier, url = Frontier(get_redis(operable.redis)), "https://site.example/0"
    frontier.begin(Crawl("c", "site.example", url, datetime.now(UTC)))
    frontier.note_published("c", [FrontierUrl(url, canonical_key(url), 0)])
    before = frontier.progress("site.example")
    let_wait(operable, publisher, 1, kind="index")
    send_form(client, "/ops/waiting/end", queue=QUEUE, act="dead", every="true", why="a trap")
    after = frontier.progress("site.example")
    assert broker.depth("site.dead") == 1
    assert (after.open - before.open, after.dead - before.dead) == (-1, 1)


def test_the_api_does_the_same_and_refuses_what_it_does_not_know(
    operable: Settings, client: httpx.Client, publisher: Publisher, broker: Broker
) -> None:
    let_wait(operable, publisher, 3)

    def post(**body: object) -> httpx.Response:
        return client.post("/api/v1/ops/waiting/end", json=body, headers=api_headers())

    assert post(queue=QUEUE, act="send", every=True, most=2).json() == {"moved": 2, "left": 1, "failure": ""}
    assert post(queue=QUEUE, act="dead", ids=ids_of(client)).json() == {"moved": 1, "left": 0, "failure": ""}
    assert broker.depths([QUEUE, "site.page", "site.dead"]) == [0, 2, 1]
    assert post(queue="site.page", act="send", every=True).status_code == 404
    assert post(queue="site.delay.0", act="send", every=True).status_code == 404
    assert post(queue=QUEUE, act="drop").status_code == 400
    assert post(queue=QUEUE, act="send", ids=[]).status_code == 400
    assert post(queue=QUEUE, act="send", unknown=1).status_code == 400
    assert post(queue="site.delay.7", act="send", every=True).json() == {"moved": 0, "left": 0, "failure": ""}
    refused = send_form(client, "/ops/waiting/end", queue=QUEUE, act="send", why="it is back")
    assert refused.status_code == 400
    assert "Nothing was moved: choose at least one message" in refused.text
    assert send_form(client, "/ops/waiting/end", queue=QUEUE, act="burn", every="true").status_code == 400


def test_a_replacement_that_cannot_be_published_leaves_the_message_waiting(
    operable: Settings, publisher: Publisher, broker: Broker
) -> None:
    let_wait(operable, publisher, 3)
    place = DelayQueue.of(QUEUE, retry_policies(operable))
    assert place is not None

    def convert(delivery: Delivery) -> Outgoing:
        sent = place.sent_now(delivery)
        return replace(sent, routing_key="nowhere", exchange="") if b"/1" in delivery.body else sent

    moved = move(operable.broker, QUEUE, publisher, convert, ids=None)
    assert (moved.moved, moved.left) == (2, 1)
    assert "nowhere" in moved.failure
    assert broker.depths([QUEUE, "site.page"]) == [1, 2]


def test_a_move_that_is_interrupted_after_the_confirm_makes_a_duplicate_and_loses_nothing(
    operable: Settings, publisher: Publisher, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_wait(operable, publisher, 2)
    place = DelayQueue.of(QUEUE, retry_policies(operable))
    assert place is not None

    class Killed(Exception):
        """Raised where the process would end."""

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("kombu.transport.pyamqp.Channel.basic_ack", killed)
        with pytest.raises(Killed):
            move(operable.broker, QUEUE, publisher, place.sent_now, ids=None)
    eventually(lambda: broker.depths([QUEUE, "site.page"]) == [2, 2], "the broker has both back")
    move(operable.broker, QUEUE, publisher, place.sent_now, ids=None)
    assert broker.depths([QUEUE, "site.page"]) == [0, 4]


def test_every_delay_queue_of_every_policy_is_known_and_no_other(settings: Settings) -> None:
    served = settings.model_copy(update={"musicbrainz_url": SecretStr("postgresql://nowhere")})
    policies = retry_policies(served)
    queues = [queue for policy in policies for queue in policy.queues()]
    delays = {queue.name for queue in queues if "x-message-ttl" in (queue.queue_arguments or {})}
    assert {"orchestrator.retry", "site.delay.5000", "cover-art-archive.retry"} <= delays
    assert all(DelayQueue.of(name, policies) for name in delays)
    names = ("site.page", "site.dead", "site.delay.", "site.delay.01", "site.delay.99999999999", "x.delay.5", "")
    assert [DelayQueue.of(name, policies) for name in names] == [None] * len(names)
    rejected = Delivery(
        body=b"{}",
        headers={"x-death": [{"queue": "orchestrator", "reason": "rejected", "count": 3}]},
        properties={},
        content_type="application/json",
        content_encoding="utf-8",
        queue="orchestrator.retry",
        routing_key="update",
    )
    place = DelayQueue.of("orchestrator.retry", policies)
    assert place is not None
    sent = place.sent_now(rejected)
    assert (sent.exchange, sent.routing_key) == ("orchestrator.retry-requeue", "update")
    assert subscriber_policy("orchestrator", settings).attempts(replace(rejected, headers=sent.headers)) == 3
    art = DelayQueue.of("cover-art-archive.retry", policies)
    assert art is not None
    assert art.work_queue(replace(rejected, routing_key="index")) == "cover-art-archive.index"
    assert art.sent_now(replace(rejected, routing_key="index")).exchange == "cover-art-archive"
