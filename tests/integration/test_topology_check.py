"""`perennial topology` with a real broker: its findings are true, and a migration loses and changes nothing."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import requests
from amqp import Message, spec
from amqp.abstract_channel import AbstractChannel
from kombu import Connection, Queue
from pydantic import SecretStr
from redis import Redis
from typer.testing import CliRunner, Result

from app.broker.connection import connected
from app.broker.declaring import declare_queues
from app.broker.errors import InvalidMessage, ManagementFailed, MigrationRefused, TopologyDiffers
from app.cli import topology as command
from app.operations.doctor.checks import run_checks
from app.storage.outage import store_breaker
from app.topology import migrate as migration
from app.topology import retry_policies
from app.topology.check import check_topology, management_api
from app.topology.declare import all_queues, declare_all
from app.topology.management_api import REMEDY, ManagementApi
from app.topology.model import Binding, Topology, bindings_of
from app.topology.queues import DEAD_SET
from config.settings import Settings
from tests.support import raw
from tests.support.accounts import accounts_of
from tests.support.broker import Broker
from tests.support.command import as_process_with
from tests.support.guide import Guide
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration


def changed(settings: Settings, **fields: Any) -> Settings:
    return settings.model_copy(update=fields)


def broker_topology(settings: Settings, connection: Any) -> Topology:
    return management_api(settings, connection).topology()


def run(monkeypatch: pytest.MonkeyPatch, settings: Settings, *arguments: str) -> Result:
    monkeypatch.setattr(command, "get_settings", lambda: settings)
    return CliRunner().invoke(command.cli, arguments)


def test_check_lists_what_is_missing_without_declaring_it_and_apply_declares_it(
    settings: Settings, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = broker_topology(settings, connection)
    assert {finding.problem for finding in check_topology(settings).findings} == {"missing"}
    assert broker_topology(settings, connection) == empty
    assert run(monkeypatch, settings, "check").exit_code == 1
    assert run(monkeypatch, settings, "apply").exit_code == 0
    assert check_topology(settings).findings == []
    answer = json.loads(run(monkeypatch, settings, "check", "--json").stdout)
    assert answer == {"ok": True, "findings": []}


def test_a_refused_declaration_keeps_no_channel_and_may_be_tried_for_as_long_as_a_worker_runs(connection: Any) -> None:
    name = "differs"
    Queue(name)(connection.channel()).declare()
    other = Queue(name, queue_arguments={"x-max-length": 1})
    declare_queues(connection, [other])
    before = len(connection.connection.channels)
    for _ in range(3):
        assert [refusal.differs for refusal in declare_queues(connection, [other, Queue("new")])] == [True]
    assert len(connection.connection.channels) == before


@pytest.mark.parametrize(
    ("api", "problem"),
    [("", "answers 404"), ("http://user:secret@127.0.0.1:1/api", "does not answer: ")],
)
def test_a_management_api_that_fails_is_one_error_without_its_password(
    settings: Settings, api: str, problem: str
) -> None:
    api = api or f"{settings.broker_api}/no-such-path"
    with pytest.raises(ManagementFailed) as caught:
        check_topology(changed(settings, broker_api_url=SecretStr(api)))
    assert str(caught.value).startswith(f"management API (BROKER_API_URL) {problem}")
    assert str(caught.value).endswith(REMEDY)
    assert "secret" not in str(caught.value)


def test_other_arguments_are_found_and_refused_but_of_a_queue_whose_messages_are_worthless(
    declared: Settings, connection: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retry_policies, "DELIVERY_LIMIT", 7)
    with connection.channel() as channel:
        channel.queue_delete("orchestrator.error")
        channel.queue_declare("orchestrator.error", durable=True, auto_delete=True)
        channel.queue_bind("orchestrator.error", "orchestrator.error", "#")
        error, *findings = check_topology(declared).findings
        assert (error.subject, error.found) == ("queue orchestrator.error", "auto_delete = True")
        names = [each.subject.removeprefix("queue site.") for each in findings]
        assert names == ["index", "crawl", "page", "timer", "pack"]
        assert all("x-delivery-limit" in each.found for each in findings)
        refused = run(monkeypatch, declared, "apply")
        assert refused.exit_code == 1
        assert "topology check" in str(refused.exception)
        # A tick is worthless when it is late, so its queue is replaced.
        channel.queue_delete("site.tick")
        channel.queue_declare("site.tick", durable=True, auto_delete=False)
        refusals = declare_all(connection, declared)
        assert {refusal.queue.name for refusal in refusals if refusal.differs} == {
            "orchestrator.error",
            *(f"site.{name}" for name in names),
        }
        assert "perennial topology check` names the remedy" in caplog.text
        # A worker would connect again many times a second.
        channel.exchange_delete("perennial.queries")
        channel.exchange_declare("perennial.queries", "fanout", durable=True, auto_delete=False)
    with pytest.raises(TopologyDiffers, match=r"inequivalent arg 'type' for exchange 'perennial\.queries'"):
        declare_all(connection, declared)


def test_a_foreign_exchange_of_our_name_deletes_no_queue(declared: Settings, connection: Any) -> None:
    with connection.channel() as channel:
        # A queue that is deleted and declared again has only the bindings of the code.
        channel.queue_bind("site.tick", "amq.topic", "kept")
        channel.exchange_delete("site")
        channel.exchange_declare("site", "fanout", durable=True, auto_delete=False)
        refused = {refusal.queue.name for refusal in declare_all(connection, declared) if refusal.differs}
        assert {"site.tick", "site.index"} <= refused
    assert Binding("amq.topic", "site.tick", "kept") in broker_topology(declared, connection).bindings


def test_an_account_that_may_declare_nothing_is_refused_each_queue_and_goes_on(
    settings: Settings, tmp_path: Path
) -> None:
    with accounts_of(settings, tmp_path) as environments, connected(environments["client"]["BROKER_URL"]) as connection:
        assert len(declare_all(connection, settings)) == len(all_queues(settings))


def test_a_former_delay_queue_is_a_note_with_its_depth(declared: Settings) -> None:
    other = changed(declared, retry_timeout_ms=3_000)
    Broker(declared.broker).post(b"{}", exchange="site.delay.80000", key="site.index")
    notes = {finding.subject: finding.found for finding in check_topology(other).findings if finding.severity == "note"}
    assert len(notes) == 5
    assert notes["queue site.delay.80000"] == "1 message(s) for 80 s"
    assert notes["queue site.delay.5000"] == "0 message(s) for 5 s"


def test_the_broker_drops_a_message_in_a_loop_that_check_finds(declared: Settings, connection: Any) -> None:
    with connection.channel() as channel:
        for name, other in (("ping", "pong"), ("pong", "ping")):
            arguments = {"x-message-ttl": 50, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": other}
            channel.queue_declare(name, durable=True, auto_delete=False, arguments=arguments)
        [note] = check_topology(declared).findings
        assert (note.severity, "loop" in note.problem) == ("note", True)
        channel.basic_publish(Message(b"lost"), exchange="", routing_key="ping")
        depth = Broker(declared.broker).depth
        eventually(lambda: depth("ping") + depth("pong") == 0, "the message is gone")


# Migration

#: Published messages: no property, an encoding that is not UTF-8, garbage, the broker's counts, compressed, expiring.
MESSAGES = (
    Message(b"0"),
    Message("1 é".encode("latin-1"), content_encoding="latin-1", content_type="text/plain", delivery_mode=1),
    Message(b"2", application_headers={"x-death": [{"queue": "site.index", "reason": "rejected", "count": 3}]}),
    Message(b"3 not gzip", application_headers={"compression": "application/x-gzip", "current-iteration": 2}),
    Message(
        b"4", expiration="3600000", reply_to="me", correlation_id="c", priority=7, timestamp=9, type="t", app_id="a"
    ),
    raw.Raw(b"5", raw.headers(raw.field(b"at", raw.timestamp(2**63)), raw.field(b"caf\xe9", raw.text(b"\xff")))),
    Message(b""),
)


def post(connection: Any, key: str = "index") -> None:
    with connection.channel() as channel:
        for message in MESSAGES:
            channel.basic_publish_confirm(message, exchange="site", routing_key=key, timeout=60)


def take_all(settings: Settings, queue: str) -> list[tuple[bytes, dict[str, Any], str]]:
    """Take every message: body, properties and routing key."""
    with Connection(settings.broker) as connection, connection.channel() as channel:
        channel.auto_decode = False
        taken = []
        while (message := channel.basic_get(queue, no_ack=True)) is not None:
            properties = {**message.properties, "delivery_mode": 0}
            headers = dict(properties.pop("application_headers", {}))
            headers.pop("x-delivery-count", None)
            taken.append((bytes(message.body or b""), {**properties, **headers}, message.delivery_info["routing_key"]))
        return taken


def test_the_guide_of_an_upgrade_gives_a_queue_its_arguments_and_its_messages_are_unchanged_in_order(
    declared: Settings, connection: Any, environment: dict[str, str]
) -> None:
    pack = next(queue for queue in all_queues(declared) if queue.name == "site.pack")
    with connection.channel() as channel:
        channel.queue_delete(pack.name)
        channel.queue_declare(
            pack.name, durable=True, auto_delete=False, arguments={"x-dead-letter-exchange": DEAD_SET}
        )
        for exchange, key in (*bindings_of(pack), ("amq.topic", "tapped.#")):
            channel.queue_bind(pack.name, exchange, key)
    post(connection, "pack_full")
    as_posted = take_all(declared, pack.name)
    post(connection, "pack_full")
    guide = Guide("docs/guides/upgrade.md", {"3 message(s)": f"{len(MESSAGES)} message(s)"})
    with as_process_with(environment):
        guide.follow(exit_codes={"perennial topology check": 1})
        guide.follow()
        guide.end()
    assert take_all(declared, pack.name) == as_posted
    assert len(as_posted) == len(MESSAGES)
    found = broker_topology(declared, connection)
    assert Binding("amq.topic", pack.name, "tapped.#") in found.bindings
    assert not [name for name in (*found.queues, *found.exchanges) if "aside" in name]
    assert migration.migrate(pack.name, declared, print) == 0


def test_messages_of_a_migrated_delay_queue_wait_again_and_return(declared: Settings, connection: Any) -> None:
    other = changed(declared, queue_type="classic")
    Broker(declared.broker).post(b"{}", exchange="site.delay.8000", key="site.index")
    assert migration.migrate("site.delay.8000", other, print) == 1
    assert broker_topology(declared, connection).queues["site.delay.8000"].type == "classic"
    eventually(lambda: Broker(declared.broker).depth("site.index") == 1, "the message is back")
    [(_, _, key)] = take_all(declared, "site.index")
    assert key == "site.index"


def test_a_used_or_unknown_queue_or_one_without_the_api_is_not_migrated(declared: Settings, connection: Any) -> None:
    other, before = changed(declared, queue_type="classic"), broker_topology(declared, connection)
    with connection.channel() as channel:
        channel.basic_consume("site.index", callback=print)
        with pytest.raises(MigrationRefused, match=r"site\.index has 1 consumer"):
            migration.migrate("site.index", other, print)
    with pytest.raises(ManagementFailed, match="BROKER_API_URL is not set: enable the plugin rabbitmq_management"):
        migration.migrate("site.index", changed(other, broker_api_url=SecretStr("")), print)
    with pytest.raises(InvalidMessage, match="unknown queue"):
        migration.migrate("cover-art-archive.index", other, print)
    assert broker_topology(declared, connection) == before


def test_a_stream_or_an_exclusive_queue_is_not_migrated(declared: Settings, connection: Any) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "stream": {"durable": True, "arguments": {"x-queue-type": "stream"}},
        "exclusive": {"exclusive": True},
    }
    with connection.channel() as channel:
        for kind, options in kinds.items():
            channel.queue_delete("site.pack")
            channel.queue_declare("site.pack", auto_delete=False, **options)
            with pytest.raises(MigrationRefused, match=rf"site\.pack is .*{kind}"):
                migration.migrate("site.pack", declared, print)


def test_a_queue_from_which_a_circuit_breaker_keeps_its_workers_is_not_migrated(
    declared: Settings, connection: Any, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, before = changed(declared, queue_type="classic"), broker_topology(declared, connection)
    store_breaker(redis).fail(reason="the disk is away")
    result = run(monkeypatch, other, "migrate", "site.index")
    assert isinstance(result.exception, MigrationRefused)
    assert re.search(r"site\.index may have workers.* circuit breaker of the store", str(result.exception))
    assert broker_topology(declared, connection) == before
    # It has no part in delay queues.
    assert run(monkeypatch, other, "migrate", "site.delay.8000").exit_code == 0


class Killed(BaseException):
    """Raised in place of an operation on the broker: the simulated end of the process."""


def killed_before(monkeypatch: pytest.MonkeyPatch, operation: int) -> None:
    """Raise Killed at an operation on exchanges, queues or messages with this number, and at every later one."""
    left, send = [operation], AbstractChannel.send_method

    def send_method(channel: Any, sig: tuple[int, int], *args: Any, **kwargs: Any) -> Any:
        counts = sig[0] in (spec.Exchange.CLASS_ID, spec.Queue.CLASS_ID, spec.Basic.CLASS_ID)
        left[0] -= counts
        if counts and left[0] <= 0:
            raise Killed
        return send(channel, sig, *args, **kwargs)

    monkeypatch.setattr(AbstractChannel, "send_method", send_method)


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.long)])
def test_a_migration_killed_before_any_operation_loses_nothing_and_the_next_run_finishes_it(
    declared: Settings, connection: Any, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    depth = Broker(declared.broker).depth
    post(connection)
    # The API's statistics are 5 s old. That would delay each run, so the count is read from the broker.
    monkeypatch.setattr(ManagementApi, "message_counts", lambda _api, queue: (depth(queue), 0))
    monkeypatch.setattr(migration, "_BATCH", 3)
    bodies = {bytes(message.body) for message in MESSAGES}
    limit, operation, ended = 7, 1 - step, False
    while not ended:
        operation += step
        monkeypatch.setattr(retry_policies, "DELIVERY_LIMIT", limit)
        with monkeypatch.context() as patch:
            killed_before(patch, operation)
            with suppress(Killed):
                migration.migrate("site.index", declared, print)
                ended = True
        migration.migrate("site.index", declared, print)
        left = take_all(declared, "site.index")
        assert {body for body, _, _ in left} == bodies, operation
        limit = 57 - limit
        post(connection)
    assert operation > 30
    assert not [name for name in broker_topology(declared, connection).queues if "aside" in name]


def set_policy(
    settings: Settings,
    pattern: str,
    *,
    kind: str = "policies",
    name: str = "trim",
    **keys: Any,
) -> None:
    """Set a policy in the vhost of the test."""
    vhost = quote(urlsplit(settings.broker).path.removeprefix("/"), safe="")
    body = {"pattern": pattern, "apply-to": "queues", "definition": {k.replace("_", "-"): v for k, v in keys.items()}}
    answer = requests.put(f"{settings.broker_api}{kind}/{vhost}/{name}", json=body, timeout=10)
    answer.raise_for_status()


def findings(settings: Settings, *words: str) -> dict[str, str]:
    """Return problems and remedies by subject, as soon as they have these words: policies take effect later."""

    def found() -> dict[str, str]:
        report = check_topology(settings)
        assert all(finding.severity == "error" for finding in report.errors)
        texts: dict[str, str] = {}
        for finding in report.errors:
            texts[finding.subject] = f"{texts.get(finding.subject, '')}{finding.problem}; {finding.remedy}\n"
        return texts

    def complete() -> dict[str, str]:
        texts = found()
        return texts if all(word in str(texts) for word in words) else {}

    # Each check reads the whole topology.
    return eventually(complete, f"errors about {words}", every=0.5)


def test_policies_that_remove_messages_are_errors_of_check_and_doctor(declared: Settings) -> None:
    # Together, because the management API shows the policies of a quorum queue some seconds later.
    broker = Broker(declared.broker)
    for number in range(5):
        broker.post(str(number).encode(), exchange="site.dead", key="")
    assert broker.depth("site.dead") == 5
    set_policy(declared, r"^site\.dead$", max_length=2, expires=3_600_000)
    set_policy(declared, r"^site\.pack$", name="drop", max_length=1, overflow="drop-head")
    set_policy(declared, r"^site\.", kind="operator-policies", name="cap", message_ttl=60_000)
    texts = findings(declared, "max-length = 2", "overflow", "instead of 512000 ms", "queue site.index")
    text = texts["queue site.dead"]
    eventually(lambda: broker.depth("site.dead") == 2, "the broker removed three letters")
    assert "policy trim sets max-length = 2: deletes the oldest messages when the queue is full" in text
    assert "policy trim sets expires = 3600000: deletes the queue with its messages" in text
    assert "rabbitmqctl clear_policy trim" in text
    problems = [each.text for each in run_checks(declared) if each.status == "problem"]
    assert any("queue site.dead: policy trim sets max-length = 2" in each for each in problems)
    # The policy comes before the queue's own `reject-publish`, which would have refused two of three messages.
    for number in range(3):
        broker.post(str(number).encode(), exchange="", key="site.pack")
    eventually(lambda: sorted(int(each.body) for each in broker.peek("site.dead")) == [0, 1], "two are in the dead set")
    text = texts["queue site.pack"]
    assert "overflow = drop-head" in text or "max-length = 1: moves the oldest messages" in text
    # An operator policy is named where it sets the value.
    assert "operator policy cap sets message-ttl = 60000: moves messages that waited" in texts["queue site.index"]
    assert "clear_operator_policy cap" in texts["queue site.index"]
    # A delay queue of less than a minute keeps its own wait.
    assert "queue site.delay.5000" not in texts
    assert "ends the wait after 60000 ms instead of 512000 ms" in texts["queue site.delay.512000"]
