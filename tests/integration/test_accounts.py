"""What an account of the broker may do, and above all what it may not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from amqp import Message
from amqp.exceptions import AccessRefused
from kombu import Connection
from pydantic import SecretStr

from app.broker.connection import connected
from app.broker.dead_letters import ReplayOptions, reading
from app.broker.dead_letters.canary import Canary
from app.broker.dead_letters.counting import count_letters
from app.broker.dead_letters.exports import read_export
from app.broker.dead_letters.reading import leased
from app.broker.dead_letters.shards import index_queue, shard_queue
from app.broker.errors import BrokerUnreachable
from app.broker.headers import OUTCOME_TO, REPLAY, REPLAY_HISTORY
from app.broker.outgoing import Outgoing
from app.broker.publishing import Publisher
from app.broker.worker.failures import FailureHandler
from app.errors import ServicesError
from app.messages.dead_sets import dead_directory, dead_sets
from app.messages.envelopes import event_message, site_message
from app.operations.audit import AuditLog
from app.operations.broker_accounts import make_accounts
from app.private_services import Urls
from app.topology.accounts import accounts
from app.topology.queues import searcher_queue
from app.topology.retry_policies import retry_policies, site_policy
from config.settings import Settings
from tasks.ticks import publish_due_tidy, tidy
from tests.support.accounts import accounts_of
from tests.support.broker import Broker
from tests.support.clock import HandTimer
from tests.support.corner import environment_of, own_settings
from tests.support.deliveries import delivery
from tests.support.operators import api_headers, operated, with_operators
from tests.support.task_context import task_context
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

MAILBOX = "worker@host.celery.pidbox"
SEARCHER = searcher_queue("one").name
QUEUES = ("site.index", "site.dead", "orchestrator", "orchestrator.requests", "orchestrator.error")

Environments = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Shared:
    """A broker with an account for each kind of process, and what is in the environment of each kind."""

    settings: Settings
    environments: Environments
    broker: Broker


@pytest.fixture(scope="module")
def accounted(services: Urls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """Yield a broker with all accounts, a worker's mailbox and a searcher's queue."""
    folder = tmp_path_factory.mktemp("accounts")
    with (
        own_settings(services, folder) as settings,
        accounts_of(settings, folder / "files") as found,
        Connection(settings.broker) as operator,
    ):
        channel = operator.default_channel
        channel.exchange_declare("celery.pidbox", "fanout", durable=False, auto_delete=False)
        channel.queue_declare(MAILBOX, durable=False, auto_delete=False)
        channel.queue_bind(MAILBOX, "celery.pidbox")
        searcher_queue("one")(channel).declare()
        yield Shared(settings, found, Broker(settings.broker))


@pytest.fixture
def shared(accounted: Shared) -> Iterator[Shared]:
    """Yield the broker with all accounts; what a test leaves in queues that others look at is removed."""
    yield accounted
    for queue in (*QUEUES, MAILBOX):
        accounted.broker.take(queue)


def publish(channel: Any, exchange: str, key: str, *, mandatory: bool = True) -> None:
    channel.basic_publish_confirm(Message(b"{}"), exchange=exchange, routing_key=key, mandatory=mandatory, timeout=60)


def refused(url: str, act: Any) -> bool:
    """Return whether the broker refuses an act of an account."""
    with Connection(url) as connection:
        try:
            act(connection.default_channel)
        except AccessRefused:
            return True
    return False


def test_a_client_may_publish_work_and_nothing_else(shared: Shared) -> None:
    url = shared.environments["client"]["BROKER_URL"]
    publisher = Publisher(url)
    publisher.publish([site_message("index", url="https://site.example/")])
    publisher.close()
    assert shared.broker.depth("site.index") == 1
    for exchange, key in (
        ("", SEARCHER),
        ("", "site.index"),
        ("perennial.queries", SEARCHER),
        ("perennial.requests", "heartbeat"),
        ("perennial.outcomes", ""),
        ("site.dead", ""),
    ):
        assert refused(url, lambda channel, to=(exchange, key): publish(channel, *to)), (exchange, key)
    for queue in (*QUEUES, MAILBOX, SEARCHER):
        assert refused(url, lambda channel, queue=queue: channel.queue_purge(queue)), queue
        assert refused(url, lambda channel, queue=queue: channel.queue_delete(queue)), queue
        assert refused(url, lambda channel, queue=queue: channel.basic_get(queue)), queue
    assert shared.broker.depth("site.index") == 1


def test_only_flower_may_publish_remote_control_and_nobody_may_delete_the_work(shared: Shared) -> None:
    assert shared.environments.keys() == {account.name for account in accounts(Settings())}
    for name, environment in shared.environments.items():
        url = environment["BROKER_URL"]
        may_control = not refused(url, lambda channel: publish(channel, "celery.pidbox", ""))
        assert may_control == (name == "flower"), name
        # The replies of these two go to queues by the default exchange, which reaches every queue.
        reaches_mailbox = not refused(url, lambda channel: publish(channel, "", MAILBOX))
        assert reaches_mailbox == (name in ("orchestrator", "searcher")), name
        for queue in QUEUES:
            assert refused(url, lambda channel, queue=queue: channel.queue_delete(queue)), (name, queue)
        assert refused(url, lambda channel: channel.queue_purge("site.dead")), name


def test_each_account_publishes_its_own_events_only(shared: Shared) -> None:
    writers = {"update": "packer", "register_again": "orchestrator"}
    writers |= {"pack.written": "packer"}
    writers |= dict.fromkeys(("crawl.finished", "site.unreachable", "dead_set.grew", "doctor.error"), "worker")
    writers |= dict.fromkeys(("register", "heartbeat", "loaded", "unloaded", "failed"), "searcher")
    for event, writer in writers.items():
        message = event_message(event, {})
        for name, environment in shared.environments.items():
            is_refused = refused(
                environment["BROKER_URL"],
                lambda channel, to=message: publish(channel, to.exchange, to.routing_key, mandatory=False),
            )
            assert is_refused == (name != writer), (event, name)


def test_a_worker_declares_delay_queues_and_finds_the_dead_set_that_it_may_not_declare(shared: Shared) -> None:
    policy = site_policy(shared.settings)
    publisher = Publisher(shared.environments["worker"]["BROKER_URL"])
    for queue in (policy.delay_queue(60_000), policy.dead, policy.dead):
        publisher.declare([queue])
        publisher.publish([Outgoing(exchange=queue.exchange.name, routing_key="index", body=b"{}")])
    publisher.close()
    assert [len(shared.broker.take(queue.name)) for queue in (policy.dead, policy.delay_queue(60_000))] == [2, 1]


def test_a_worker_counts_the_letters_of_a_dead_set_and_of_its_shards(shared: Shared) -> None:
    broker, dead = shared.broker, site_policy(shared.settings).dead.name
    with Connection(shared.settings.broker) as operator, operator.channel() as channel:
        for queue in (index_queue(dead), shard_queue(dead, 2)):
            queue(channel).declare()
    broker.post(b"{}", exchange=dead, key="index")
    broker.post(b"{}", exchange="", key=shard_queue(dead, 2).name)
    with connected(shared.environments["worker"]["BROKER_URL"]) as connection:
        assert count_letters(connection, dead) == 2
        assert count_letters(connection, "missing") is None


def test_an_account_that_may_not_read_a_dead_set_gets_the_brokers_refusal_and_not_that_the_set_is_busy(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "LEASE_TIMEOUT", 0.0)
    url = shared.environments["worker"]["BROKER_URL"]
    refusal = r"access to queue 'site\.dead\.lease' .* refused"
    with pytest.raises(BrokerUnreachable, match=refusal), leased(url, "site.dead"):
        pass


def test_a_worker_reports_outcomes_to_a_canary_and_to_no_other_queue(
    shared: Shared, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("worker", "packer", "orchestrator", "coverart"):
        publisher, policies = Publisher(shared.environments[name]["BROKER_URL"]), retry_policies(shared.settings)
        handler = FailureHandler(policies=policies, publisher=publisher, timer=HandTimer(), worker=name)
        with closing(publisher), connected(shared.settings.broker) as operator:
            canary = Canary(operator, wait=20)
            replayed = {REPLAY: "keep", REPLAY_HISTORY: ["1d6a"]}
            for headers in (
                # Of a client, and of replays whose operator has gone or whose queue is another's.
                {OUTCOME_TO: canary.queue},
                {**replayed, OUTCOME_TO: "amq.gen-gone"},
                {**replayed, OUTCOME_TO: "site.index"},
                {**replayed, OUTCOME_TO: MAILBOX},
                {**replayed, OUTCOME_TO: canary.queue},
            ):
                handler.report_outcome("site.page", replace(delivery("site.page"), headers=headers), "succeeded")
            canary.expect(["1d6a"])
            assert canary.wait_all(20), name
    assert caplog.messages == []
    assert shared.broker.depths(["site.index", MAILBOX, "site.dead"]) == [0, 0, 0]


def test_passwords_are_kept_from_run_to_run_and_only_their_owner_can_read_them(
    settings: Settings, tmp_path: Path
) -> None:
    folder = tmp_path / "accounts"
    with accounts_of(settings, folder):
        assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}
        before = {file.name: file.read_text() for file in folder.iterdir()}
        prefix = before["web.env"].partition("//")[2].partition("-web:")[0]
        make_accounts(settings, folder, prefix=prefix)
        assert {file.name: file.read_text() for file in folder.iterdir()} == before
        given = settings.model_copy(update={"account_passwords": SecretStr("web=p/w,beat=b")})
        make_accounts(given, folder, prefix=prefix)
        changed = {file.name for file in folder.iterdir() if file.read_text() != before[file.name]}
        assert changed == {"web.env", "beat.env"}
        assert f"amqp://{prefix}-web:p%2Fw@" in (folder / "web.env").read_text()
        unknown = given.model_copy(update={"account_passwords": SecretStr("wep=p/w")})
        with pytest.raises(ServicesError, match=r"^ACCOUNT_PASSWORDS: wep: expected worker, "):
            make_accounts(unknown, folder, prefix=prefix)
        with pytest.raises(ServicesError, match=r"^/proc/nowhere cannot be made: .*; name another by --directory$"):
            make_accounts(settings, Path("/proc/nowhere"), prefix=prefix)


def test_the_web_process_acts_for_operators_only_where_the_settings_have_any(
    settings: Settings, tmp_path: Path
) -> None:
    policy, operable = site_policy(settings), with_operators(settings)
    waits = policy.delay_queue(600_000)
    publisher = Publisher(settings.broker)
    with closing(publisher), accounts_of(settings, tmp_path / "accounts") as environments:
        publisher.declare([waits])
        for number in range(2):
            sent = site_message("index", url=f"https://site.example/{number}")
            message = Outgoing(exchange=waits.exchange.name, routing_key="site.index", body=sent.body)
            publisher.publish([message])
        url = environments["web"]["BROKER_URL"]
        for queue in ("site.dead", waits.name):
            assert refused(url, lambda channel, queue=queue: channel.basic_get(queue)), queue
    with accounts_of(operable, tmp_path / "operators") as environments:
        found = {name: SecretStr(environments["web"][name]) for name in ("BROKER_URL", "BROKER_API_URL")}
        own = {name.lower(): url for name, url in found.items()}
        with operated(operable.model_copy(update={**own, "declare_topology": False})) as client:

            def moved(act: str) -> dict[str, object]:
                body = {"queue": waits.name, "act": act, "every": True, "most": 1}
                answer = client.post("/api/v1/ops/waiting/end", json=body, headers=api_headers())
                found: dict[str, object] = answer.json()
                return found

            assert [moved("send"), moved("dead")] == [
                {"moved": 1, "left": 1, "failure": ""},
                {"moved": 1, "left": 0, "failure": ""},
            ]
            dead = dead_sets(operable.model_copy(update={**own, "declare_topology": False}))
            assert dead.depth() == 1
            chosen = dead.choose(lambda _letter: True)
            assert len(dead.replay(chosen, ReplayOptions(budget="fresh")).done) == 1
            with connected(environments["web"]["BROKER_URL"]) as connection:
                assert Canary(connection, wait=1).wait_all(1)
            assert Broker(settings.broker).depths(["site.index", "site.dead", waits.name]) == [2, 0, 0]
            wait_for_checks(client)
            overview = client.get("/api/v1/ops/overview", headers=api_headers()).json()
            assert [each["level"] for each in overview["findings"]] == ["problem"], overview
            assert "no worker consumes" in overview["findings"][0]["text"]
            with Connection(settings.broker) as worker:
                worker.default_channel.queue_declare(MAILBOX, exclusive=True)
                worker.default_channel.basic_consume(MAILBOX, no_ack=True)
                shown = eventually(lambda: workers_of(client), "the worker is known", every=0.5)
            # The account may not inspect workers, and says so.
            assert shown == [("worker@host", False)]
            assert "this account of the broker may not inspect workers" in client.get("/ops/queues").text
        url = environments["web"]["BROKER_URL"]
        for exchange, key in (("", MAILBOX), ("", "site.index"), ("celery.pidbox", ""), ("perennial.events", "loaded")):
            assert refused(url, lambda channel, to=(exchange, key): publish(channel, *to)), (exchange, key)
        for queue in QUEUES:
            assert refused(url, lambda channel, queue=queue: channel.queue_delete(queue)), queue


def test_the_packer_exports_and_drops_dead_letters_by_itself_only_where_the_settings_limit_them(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    broker, limited = Broker(settings.broker), settings.model_copy(update={"dead_max_letters": 2})
    bodies = [json.dumps({"type": "index", "url": f"https://{name}.gov/"}).encode() for name in "abc"]
    with accounts_of(settings, tmp_path / "accounts") as environments, closing(Publisher(settings.broker)) as publisher:
        publisher.publish([Outgoing(exchange="site.dead", routing_key="site.index", body=body) for body in bodies])
        assert refused(environments["packer"]["BROKER_URL"], lambda channel: channel.basic_get("site.dead"))
    with accounts_of(limited, tmp_path / "limited") as environments:
        packer = {**environment_of(settings), **environments["packer"], "DEAD_MAX_LETTERS": "2"}
        with task_context(packer, settings, monkeypatch) as process:
            publish_due_tidy()
            publish_due_tidy()
            assert [json.loads(each.body) for each in broker.take("site.pack")] == [{"type": "tidy"}]
            # It waits for an operator that works on the set, and has the next turn.
            with monkeypatch.context() as patch, leased(settings.broker, "site.dead"):
                patch.setattr(reading, "LEASE_TIMEOUT", 0.2)
                tidy()
            assert broker.depth("site.dead") == 3
            tidy()
            tidy()
            assert broker.depth("site.dead") == 2
            [entry] = AuditLog(process.store).entries()
            assert entry.operator.startswith("system@")
            assert (entry.origin, entry.act, entry.result) == ("system", "drop letters", "1 dropped")
            [dropped] = read_export(dead_directory(process.settings) / entry.details["file"])
            assert dropped.delivery.body == bodies[0]
            assert f"{entry.details['file']} and dropped, by the settings: 1" in caplog.text


def workers_of(client: httpx.Client) -> list[tuple[str, bool]]:
    """Return the names of the workers, each with whether it answers."""
    found = client.get("/api/v1/ops/workers", headers=api_headers()).json()
    return [(each["name"], each["answers"]) for each in found["workers"]]


def wait_for_checks(client: httpx.Client) -> None:
    """Wait until the checks of the home page have run."""
    eventually(lambda: "are well" in client.get("/ops").text, "the checks have run", every=0.5)
