"""Notifications over real connections: hostile receivers, a mail server, and what a look at the system publishes."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email import message_from_bytes
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope, LoginPassword
from kombu import Connection

from app.broker.dead_letters import shards
from app.broker.errors import InvalidMessage, Postpone
from app.broker.worker.task import Task
from app.crawl.frontier.values import Crawl, FrontierUrl, Host, MessageKind
from app.crawl.page import complete_dead
from app.crawl.urls import parse_crawl_url
from app.messages.dead_sets import dead_sets
from app.messages.envelopes import event_message
from app.notifications import receivers
from app.notifications.delivery import WAKE, receiver_breaker
from app.notifications.events import CrawlFailed, DoctorError, PublicEvent
from app.operations.doctor.checks import quick_problems
from app.redis_state.circuit_breaker import CircuitBreaker
from app.topology.declare import declare_all
from config.settings import Settings, get_settings
from tasks.base import Context, context
from tasks.notify import notify, publish_due_notifications, publish_events, watch
from tasks.site import end_crawl, index_and_crawl
from tests.servers import hazards
from tests.servers.site import Answer, Site, failure, in_turn, redirect, reply
from tests.support.broker import Broker
from tests.support.completing import enter_one
from tests.support.declared import DeclaredVhost
from tests.support.task_context import task_context
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

WEBHOOK, MAIL, SECRET = "notify.webhook", "notify.mail", "0123456789abcdef"
OK = reply(b"", status=204)

Configure = Callable[..., Context]


@pytest.fixture
def broker_url(declared_vhost: DeclaredVhost) -> Iterator[str]:
    with declared_vhost.lent() as url:
        yield url


@pytest.fixture
def site() -> Iterator[Site]:
    with Site({"/hook": OK}) as site:
        yield site


@pytest.fixture
def configure(environment: dict[str, str], settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Configure]:
    """Return a function that makes the context of a worker with further settings, and declares its queues."""
    contexts = []

    def make(**given: str) -> Context:
        ours = {**environment, "RETRY_TIMEOUT_MS": "100", **given}
        context = task_context(ours, settings, monkeypatch)
        contexts.append(context)
        process = context.__enter__()
        with Connection(settings.broker) as connection:
            assert not declare_all(connection, get_settings())
        return process

    yield make
    for each in contexts:
        each.__exit__(None, None, None)


@pytest.fixture
def process(configure: Configure, site: Site) -> Context:
    return configure(WEBHOOK_URL=site.at("/hook"), WEBHOOK_SECRET=SECRET)


def failed(domain: str, number: int = 0) -> PublicEvent:
    named: dict[str, Any] = {"start_url": f"https://{domain}/", "state": "done", "reasons": {}}
    counts: dict[str, Any] = {"seen": 1, "indexed": 0, "dead": 1}
    return CrawlFailed.of(site=domain, crawl_id=f"c{number}", started=datetime.now(UTC), **named, **counts)


def published(*domains: str) -> list[str]:
    """Publish an event about each site; return the ids."""
    events = [failed(domain, number) for number, domain in enumerate(domains)]
    publish_events(events)
    return [str(event.id) for event in events]


def ids(site: Site) -> list[str]:
    return [request.headers["perennial-delivery"] for request in site.requests]


def waits(receiver: str = WEBHOOK) -> str:
    """Run the delivery, after which the receiver rests; return why."""
    reasons, fail = list[str](), CircuitBreaker.fail

    def noted(breaker: CircuitBreaker, *, reason: str, retry_after: float | None) -> tuple[float, bool]:
        reasons.append(reason)
        return fail(breaker, reason=reason, retry_after=retry_after)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CircuitBreaker, "fail", noted)
        context().redis.delete(WAKE)
        notify(receiver=receiver)
    [reason] = reasons
    assert context().redis.exists(WAKE)
    return reason


def deliver(broker: Broker, receiver: str = WEBHOOK) -> None:
    """Run the delivery until nothing waits."""

    def done() -> bool:
        notify(receiver=receiver)
        return broker.depth(receiver) == 0

    eventually(done, "every event is delivered")


def breaker(process: Context) -> CircuitBreaker:
    return receiver_breaker(process.redis, WEBHOOK, process.settings)


def letters(broker: Broker) -> list[tuple[str, str]]:
    """Return the reason and the site of each dead letter."""
    found = broker.peek("site.dead")
    return [(each.headers["perennial-reason"], json.loads(each.body).get("site", "")) for each in found]


def end_pause(process: Context) -> None:
    """End the pause of the receiver at once."""
    assert process.redis.delete("perennial:outage:receiver:notify.webhook:until")


def test_each_event_arrives_with_its_bytes_signed_and_those_behind_a_failing_one_wait(
    configure: Configure, site: Site, broker: Broker
) -> None:
    # No pause ends by itself before the test has looked.
    process = configure(WEBHOOK_URL=site.at("/hook"), WEBHOOK_SECRET=SECRET, RETRY_TIMEOUT_MS="60000")
    site.set("/hook", in_turn(OK, OK, failure(500), failure(429), OK))
    broker.bind_new("mine")
    broker.bind_new("mine", exchange="perennial.events", key="#")
    sent = published("a.gov", "b.gov", "c.gov", "d.gov", "e.gov")
    bodies = [message.body for message in broker.take("mine")]
    assert waits() == "the webhook answers 500"
    assert ids(site) == sent[:3]
    eventually(lambda: broker.depth(WEBHOOK) == 3, "the event is back in its queue")
    notify(receiver=WEBHOOK)  # The receiver rests.
    assert len(site.requests) == 3
    end_pause(process)
    assert waits() == "the webhook answers 429"
    end_pause(process)
    deliver(broker)
    assert ids(site) == [*sent[:3], sent[2], *sent[2:]]
    assert not process.redis.exists("perennial:outage:receiver:notify.webhook:count")
    taken = [site.requests[number] for number in (0, 1, 4, 5, 6)]
    assert [request.body.decode() for request in taken] == bodies
    for request in taken:
        fields = dict(part.split("=") for part in request.headers["perennial-signature"].split(","))
        signed = f"{fields['t']}.".encode() + request.body
        assert fields["v1"] == hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
        assert (request.headers["perennial-event"], request.method) == ("crawl.failed", "POST")
        assert "perennial-suppressed" not in request.headers


FAILURES: dict[str, Callable[[], Answer]] = {
    "silence": hazards.silence,
    "reset": hazards.reset,
    "slow head": lambda: hazards.drip_headers(seconds=0.1),
    "redirect": lambda: redirect("/elsewhere"),
    **{f"status {status}": partial(failure, status) for status in (500, 408, 425)},
}


def test_an_event_waits_at_the_head_while_its_receiver_fails(
    process: Context, site: Site, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.set("/elsewhere", OK)
    for number, (name, answer) in enumerate(FAILURES.items()):
        site.set("/hook", in_turn(answer(), OK))
        first, second = published(f"a{number}.gov", f"b{number}.gov")
        with monkeypatch.context() as impatient:
            impatient.setattr(receivers, "_TIMEOUT", 0.5)
            assert waits(), name
        eventually(lambda: broker.depth(WEBHOOK) == 2, f"the event is back in its queue after {name}")
        deliver(broker)
        assert ids(site)[-3:] == [first, first, second], name
    assert {request.path for request in site.requests} == {"/hook"}
    assert len(site.requests) == 3 * len(FAILURES)


def test_a_status_of_success_is_enough_whatever_body_follows(process: Context, site: Site, broker: Broker) -> None:
    sent = []
    for number, answer in enumerate((hazards.endless(), hazards.drip(seconds=0.1))):
        site.set("/hook", answer)
        sent += published(f"{number}.gov")
        deliver(broker)
    assert ids(site) == sent


def test_an_event_that_is_refused_for_good_is_dead_lettered_at_once_and_may_be_replayed(
    process: Context, site: Site, broker: Broker
) -> None:
    site.set("/hook", in_turn(failure(410), OK))
    first, second = published("a.gov", "b.gov")
    notify(receiver=WEBHOOK)
    assert ids(site) == [first, second]
    assert letters(broker) == [("notification-refused", "a.gov")]
    dead = dead_sets(process.settings)
    [letter] = dead.letters()
    assert (letter.queue, letter.error_message) == (WEBHOOK, "the webhook answers 410")
    assert dead.replay([letter.id]).done
    notify(receiver=WEBHOOK)
    assert ids(site) == [first, second, first]
    assert broker.depth("site.dead") == 0


def test_a_receiver_that_asks_for_a_pause_gets_it(process: Context, site: Site, broker: Broker) -> None:
    process.redis.set("perennial:watched", 1)
    site.set("/hook", failure(503, retry_after="120"))
    published("a.gov")
    waits()
    assert breaker(process).seconds_open() > 100
    [problem] = quick_problems(process.settings)["circuit breakers"]
    assert problem.startswith("the receiver notify.webhook is unavailable")
    for _ in range(2):
        publish_due_notifications()
        assert broker.depth("site.timer") == 0
    end_pause(process)
    publish_due_notifications()
    assert len(broker.take("site.timer")) == len(site.requests) == 1


def test_events_that_are_none_or_waited_too_long_or_have_a_time_to_come_are_dead_letters_and_hold_back_none(
    configure: Configure, site: Site, broker: Broker
) -> None:
    process = configure(WEBHOOK_URL=site.at("/hook"), WEBHOOK_SECRET=SECRET)
    for domain, at in (("a.gov", "2025-01-01T00:00:00Z"), ("b.gov", "9000-01-02T00:00:00Z")):
        old = failed(domain).payload() | {"at": at}
        process.publisher.publish([event_message(old.pop("type"), old)])
    broker.post(b"{}", exchange="perennial.events", key="crawl.failed")
    sent = published("c.gov")
    with site.away():
        waits()
        assert letters(broker) == [("connection", "a.gov"), ("connection", "b.gov"), ("undecodable", "")]
        eventually(lambda: broker.depth(WEBHOOK) == 1, "the event is back in its queue")
    deliver(broker)
    assert ids(site) == sent


def test_within_a_quiet_period_a_site_has_one_notification_and_the_next_has_the_number_of_the_others(
    configure: Configure, site: Site, broker: Broker
) -> None:
    process = configure(WEBHOOK_URL=site.at("/hook"), WEBHOOK_SECRET=SECRET)
    first, _, _, other = published("a.gov", "a.gov", "a.gov", "b.gov")
    notify(receiver=WEBHOOK)
    assert (ids(site), broker.depth(WEBHOOK)) == ([first, other], 0)
    process.redis.hset("perennial:quiet:notify.webhook:crawl.failed:a.gov", "sent_at", 1.0)
    [*_, last] = published("c.gov", "d.gov", "e.gov", "a.gov")
    notify(receiver=WEBHOOK)
    assert (ids(site)[-1], site.requests[-1].headers["perennial-suppressed"]) == (last, "2")
    pack = {name: event for name, event in failed("a.gov").payload().items() if name not in ("type", "id")}
    for event_id in ("1", "2"):
        process.publisher.publish([event_message("pack.written", {**pack, "id": event_id})])
    notify(receiver=WEBHOOK)
    assert ids(site)[-2:] == ["1", "2"]


def test_an_event_that_was_sent_and_not_acknowledged_is_not_sent_again(
    process: Context, site: Site, broker: Broker
) -> None:
    sent = published("a.gov")
    [message] = broker.peek(WEBHOOK)
    notify(receiver=WEBHOOK)
    broker.post(message.body, key=WEBHOOK)
    notify(receiver=WEBHOOK)
    assert (ids(site), broker.depth(WEBHOOK)) == (sent, 0)


def test_one_process_at_a_time_delivers_to_a_receiver(process: Context, site: Site, broker: Broker) -> None:
    published("a.gov")
    with Connection(process.settings.broker) as other:
        other.default_channel.queue_declare(f"{WEBHOOK}.lease", exclusive=True)
        notify(receiver=WEBHOOK)
        assert (site.requests, broker.depth(WEBHOOK)) == ([], 1)
    notify(receiver=WEBHOOK)
    assert len(site.requests) == 1


def test_a_wake_publishes_one_message_for_each_receiver_and_nothing_without_receivers(
    configure: Configure, site: Site, broker: Broker
) -> None:
    process = configure()
    process.redis.set("perennial:watched", 1)
    published("a.gov")
    publish_due_notifications()
    assert broker.depth("site.timer") == 0
    notify(receiver=WEBHOOK)  # Of former settings.
    with pytest.raises(InvalidMessage, match="receiver None"):
        notify()
    configure(WEBHOOK_URL=site.at("/hook"), WEBHOOK_SECRET=SECRET)
    publish_due_notifications()
    publish_due_notifications()
    assert [json.loads(each.body) for each in broker.take("site.timer")] == [{"type": "notify", "receiver": WEBHOOK}]


# Mail


class Mailbox:
    """What a mail server does with each mail, and those that it took."""

    def __init__(self) -> None:
        self.answers: list[str] = []
        self.mails: list[Any] = []
        self.logins: list[tuple[bytes, bytes]] = []

    async def handle_RCPT(self, _server: Any, _session: Any, envelope: Envelope, to: str, _options: Any) -> str:  # noqa: N802
        envelope.rcpt_tos.append(to)
        return "550 unknown" if to.startswith("unknown") else "250 OK"

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Envelope) -> str:  # noqa: N802
        answer = self.answers.pop(0) if self.answers else "250 OK"
        if answer.startswith("250"):
            assert isinstance(envelope.content, bytes)
            self.mails.append(message_from_bytes(envelope.content))
        return answer

    def accept(self, _server: Any, _session: Any, _envelope: Any, _mechanism: str, login: Any) -> AuthResult:
        assert isinstance(login, LoginPassword)
        self.logins.append((login.login, login.password))
        return AuthResult(success=login.password == b"p@ss", handled=False)


class MailServer(Controller):
    """A mail server that listens on a socket of its own: no other process can take its port before it starts."""

    def _create_server(self) -> Any:
        listener = socket.create_server((self.hostname, 0))
        self.port = int(listener.getsockname()[1])
        return self.loop.create_server(self._factory_invoker, sock=listener, ssl=self.ssl_context)


@contextmanager
def mail_server(box: Mailbox, **options: Any) -> Iterator[int]:
    server = MailServer(box, hostname="127.0.0.1", ready_timeout=60, **options)
    server.start()
    try:
        yield server.port
    finally:
        server.stop()


def mailing(configure: Configure, url: str, to: str = "a@site.example,b@site.example", **given: str) -> Context:
    return configure(SMTP_URL=url, MAIL_FROM="perennial@site.example", MAIL_TO=to, **given)


def test_a_mail_waits_for_its_server_and_comes_once(configure: Configure, broker: Broker) -> None:
    box = Mailbox()
    box.answers = ["451 later", "250 OK", "554 spam"]
    with mail_server(box) as port:
        mailing(configure, f"smtp://127.0.0.1:{port}")
        sent = published("a.gov", "b.gov", "c.gov")
        assert "the mail server answers 451" in waits(MAIL)
        eventually(lambda: broker.depth(MAIL) == 3, "the event is back in its queue")
        deliver(broker, MAIL)
    assert [mail["Message-ID"] for mail in box.mails] == [f"<{sent[0]}@site.example>", f"<{sent[2]}@site.example>"]
    assert box.mails[0]["Subject"] == "Perennial: crawl.failed a.gov"
    assert letters(broker) == [("notification-refused", "b.gov")]
    published("d.gov")
    assert "the mail server fails: ConnectionRefusedError" in waits(MAIL)


def test_a_mail_that_no_recipient_gets_is_refused(configure: Configure, broker: Broker) -> None:
    box = Mailbox()
    with mail_server(box) as port:
        mailing(configure, f"smtp://127.0.0.1:{port}", "unknown@site.example,b@site.example")
        published("a.gov")
        deliver(broker, MAIL)
        assert len(box.mails) == 1
        mailing(configure, f"smtp://127.0.0.1:{port}", "unknown@site.example")
        published("b.gov")
        deliver(broker, MAIL)
    assert (len(box.mails), letters(broker)) == (1, [("notification-refused", "b.gov")])


# The server does not know that it is behind TLS from the beginning.
@pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")
@pytest.mark.parametrize("scheme", ["smtps", "smtp+starttls"])
def test_a_login_is_sent_over_tls_to_a_server_with_a_certificate_of_its_name(
    configure: Configure, broker: Broker, tmp_path: Path, scheme: str
) -> None:
    box, authority, tls = Mailbox(), trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    options: dict[str, Any] = {"authenticator": box.accept, "auth_required": True}
    options |= {"ssl_context": tls, "auth_require_tls": False} if scheme == "smtps" else {"tls_context": tls}
    with mail_server(box, **options) as port:
        url = f"{scheme}://me%40site:p%40ss@127.0.0.1:{port}"
        mailing(configure, url)
        sent = published("a.gov")
        assert "CERTIFICATE_VERIFY_FAILED" in waits(MAIL)
        assert box.logins == []
        authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
        trusted = {"SSL_CERT_FILE": str(tmp_path / "authority.pem")}
        mailing(configure, url, **trusted)
        deliver(broker, MAIL)
        assert [mail["Message-ID"] for mail in box.mails] == [f"<{sent[0]}@site.example>"]
        mailing(configure, url.replace("p%40ss", "wrong"), **trusted)
        published("b.gov")
        why = waits(MAIL)
    assert "SMTPAuthenticationError" in why
    assert "wrong" not in why
    assert box.logins[0] == (b"me@site", b"p@ss")


# What is published


@pytest.fixture
def events(configure: Configure, broker: Broker) -> Callable[[], list[dict[str, Any]]]:
    """Return a function that takes the events of a queue that is bound to all of them."""
    configure()
    broker.bind_new("mine")
    broker.bind_new("mine", exchange="perennial.events", key="#")
    return lambda: [json.loads(message.body) for message in broker.take("mine")]


def test_a_look_publishes_what_is_new_and_not_what_was_published(
    configure: Configure, events: Callable[[], list[dict[str, Any]]], broker: Broker
) -> None:
    process = configure()
    watch()
    assert events() == []
    for number in range(3):
        broker.post(b"{}", exchange="site.dead", key="site.index")
        watch()
        found = [(each["type"], each["dead_set"], each["letters"], each["before"]) for each in events()]
        # The third letter is less than twice as many as two, and the quiet period goes on.
        assert found == ([("dead_set.grew", "site.dead", number + 1, number)] if number < 2 else [])
    process.store_breaker.fail(reason="503 of the store")
    watch()
    [problem] = events()
    assert (problem["type"], problem["check"], problem["site"]) == ("doctor.error", "circuit breakers", None)
    assert "503 of the store" in problem["problems"][0]
    watch()
    assert events() == []
    assert process.redis.exists(WAKE)
    DoctorError.model_validate(problem)


def test_a_look_counts_the_letters_of_shards_and_not_those_that_a_program_holds(
    process: Context, events: Callable[[], list[dict[str, Any]]], broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, number in (("SHARD_LETTERS", 4), ("MOVE_ABOVE", 6)):
        monkeypatch.setattr(shards, name, number)

    def add(letters: int) -> list[tuple[int, int]]:
        """Add letters and look; return the numbers of the events."""
        for number in range(letters):
            broker.post(b"%d" % number, exchange="site.dead", key="site.index")
        watch()
        return [(each["letters"], each["before"]) for each in events()]

    assert add(13) == [(13, 0)]
    assert dead_sets(process.settings).only("site.dead").depth() == 13
    assert broker.depths(["site.dead", "site.dead.shard.1", "site.dead.shard.2"]) == [5, 4, 4]
    assert add(0) == add(6) == []
    with Connection(process.settings.broker) as connection, connection.channel() as channel:
        channel.basic_consume("site.dead.shard.1", callback=lambda _: None)
        assert add(8) == []
    assert add(1) == [(28, 13)]


def test_a_crawl_whose_start_page_is_a_dead_letter_failed_and_its_end_may_be_published_again(
    configure: Configure, events: Callable[[], list[dict[str, Any]]]
) -> None:
    process = configure()
    index_and_crawl.push_request(id="c1", headers={})
    index_and_crawl.run(url="https://a.gov/")
    index_and_crawl.pop_request()
    kinds: tuple[MessageKind, ...] = ("index", "crawl")
    for kind in kinds:
        page = parse_crawl_url({"url": "https://a.gov/", "crawl_id": "c1"})
        complete_dead(process.frontier, page, kind)
    end_crawl(domain="a.gov", crawl_id="c1")
    end_crawl(domain="a.gov", crawl_id="c1")
    first, again = events()
    assert (first["type"], first["site"], first["crawl_id"], first["dead"]) == ("crawl.failed", "a.gov", "c1", 2)
    assert first["reasons"] == {"dead-lettered": 1}
    assert first["id"] == again["id"]
    CrawlFailed.model_validate(first)


def test_a_site_is_unreachable_after_two_failed_requests_of_its_start_page(
    configure: Configure, events: Callable[[], list[dict[str, Any]]]
) -> None:
    process = configure()
    frontier, host = process.frontier, Host("a.gov", delay=0, concurrency=1)
    frontier.begin(Crawl("c1", "a.gov", "https://a.gov/", datetime.now(UTC), recorded=True))
    start = FrontierUrl("https://a.gov/", "https://a.gov/", 0)
    frontier.note_published("c1", [start])

    def fail(error: str) -> None:
        enter_one(frontier, "c1", "a.gov", start, host, message_id="m")
        frontier.release("c1", "page", start.canonical_key, host.name, failed=True, error=error)

    fail("OutOfScope: another")
    fail("OutOfScope: another")
    watch()
    assert events() == []
    fail("ConnectionFailed: refused")
    watch()
    [event] = events()
    assert (event["type"], event["site"], event["failing"]) == ("site.unreachable", "a.gov", 1)
    assert event["error"] == "ConnectionFailed: refused"
    watch()
    assert events() == []


def test_a_run_that_took_too_long_is_postponed() -> None:
    assert isinstance(notify, Task)
    assert isinstance(notify.on_time_limit(), Postpone)
