"""Messages that no client should send: each ends in the dead set, and the worker lives on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from amqp import serialization
from kombu import Connection

from app.broker import amqp_internals
from app.broker.headers import ATTEMPTS, DEAD_ID, REASON
from app.topology.queues import DEAD_SET
from config.settings import Settings
from tests.support import raw
from tests.support.broker import Broker
from tests.support.command import perennial
from tests.support.waiting import eventually
from tests.support.worker import worker

pytestmark = pytest.mark.acceptance

#: Headers, under which the body is no JSON, and the reason under which it dies.
BAD: list[tuple[dict[str, Any], str]] = [
    ({"task": [1, 2]}, "invalid-message"),
    ({"retry-timeout-ms": "9" * 4_300}, "undecodable"),
    ({"retry-max": "99999999999999999999"}, "undecodable"),
    ({"current-iteration": 2**63 - 1, "retry-max": 1}, "undecodable"),
    ({"notes": ["x" * 1_000] * 126}, "undecodable"),
    # Few characters, but with a death they are more bytes than a frame may have.
    ({"notes": "\u4e00" * 43_550}, "invalid-message"),
    # No queue has a name of more than 255 bytes.
    ({"perennial-outcome-to": "x" * 300, "perennial-replay": "keep", "perennial-replay-of": ["a"]}, "undecodable"),
    ({"compression": "application/x-gzip"}, "undecodable"),
    ({"compression": "no-such-compression"}, "undecodable"),
    ({"task": "site.index", "id": "a", "timelimit": ["x", "y"]}, "invalid-message"),
    ({"task": "site.index", "id": "b", "eta": "2999-01-01T00:00:00"}, "invalid-message"),
]

#: A moment of 2023, in milliseconds: as AMQP's seconds it is the year 55840.
IN_MS = 1_700_000_000_000

#: By name of the case: properties that RabbitMQ lets through and that py-amqp alone raises for in its event loop.
WIRE = {
    "ms": raw.headers(raw.field(b"at", raw.timestamp(IN_MS))),
    "ms-in-array": raw.headers(raw.field(b"at", raw.array(raw.timestamp(2**64 - 1)))),
    "ms-of-a-task": raw.headers(
        raw.field(b"task", raw.text(b"site.index")),
        raw.field(b"id", raw.text(b"c")),
        raw.field(b"at", raw.timestamp(IN_MS)),
    ),
    "name": raw.headers(raw.field(b"caf\xe9", b"t\x01")),
    "deep": raw.headers(raw.field(b"deep", raw.nested(9_000))),
    "content-type": raw.text_property(0x8000, b"caf\xe9"),
    "content-encoding": raw.text_property(0x4000, b"caf\xe9"),
    "correlation-id": raw.text_property(0x0400, b"caf\xe9"),
    "message-id": raw.text_property(0x0080, b"caf\xe9"),
}

#: JSON that Python cannot read, or read but not copy or give to another process, and the reason under which it dies.
#: Python 3.11 fails at 1,000 levels, 3.13 at 10,000.
VALUES = {
    "a number of 5000 digits": ("9" * 5_000, "undecodable"),
    **{
        f"{depth} levels": ("[" * depth + "]" * depth, "invalid-message")
        for depth in (101, 500, 860, 940, 3_000, 9_990, 100_000)
    },
}

#: Headers of a task's message, and fields of a body in Celery's older form: they stop a worker, or wait in its memory.
OPTIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"timelimit": [1]}, {}),
    ({"stamped_headers": 5}, {}),
    ({}, {"timelimit": ["x", "y"]}),
    ({}, {"eta": "2999-01-01T00:00:00"}),
]

BUDGET = {"RETRY_TIMEOUT_MS": "100", "RETRY_MAX": "1"}


def post(settings: Settings, message: Any, key: str) -> None:
    with Connection(settings.broker) as connection, connection.channel() as channel:
        channel.basic_publish_confirm(message, exchange="site", routing_key=key, timeout=30)


def encoded(value: Any) -> bytes:
    """Return a header's value as py-amqp sends it."""
    out = bytearray()
    serialization._write_item(value, out.extend, [])
    return bytes(out)


def listed(environment: dict[str, str]) -> str:
    """Return what an operator sees of the dead set."""
    done = perennial(environment, "dead", "list", "--json")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_absurd_headers_end_in_the_dead_set_and_the_worker_lives_on(
    environment: dict[str, str], settings: Settings, tmp_path: Path
) -> None:
    broker = Broker(settings.broker)
    with worker({**environment, **BUDGET}, tmp_path / "worker.log") as running:
        for headers, _ in BAD:
            broker.post(b"no JSON", headers=headers)
        eventually(lambda: broker.depth(DEAD_SET) == len(BAD), "all are dead")
        assert running.process.poll() is None
    reasons = sorted(message.headers[REASON] for message in broker.take(DEAD_SET))
    assert reasons == sorted(reason for _, reason in BAD)


def test_a_body_that_python_cannot_read_or_pass_on_ends_in_the_dead_set_and_the_worker_lives_on(
    environment: dict[str, str], settings: Settings, tmp_path: Path
) -> None:
    broker = Broker(settings.broker)
    as_json = {"content_type": "application/json", "content_encoding": "utf-8"}
    with worker({**environment, **BUDGET}, tmp_path / "worker.log") as running:
        for name, (value, _) in VALUES.items():
            broker.post(f'{{"type": "index", "url": "https://127.0.0.1:1/", "x": {value}}}'.encode())
            broker.post(f"[[{value}], {{}}, {{}}]".encode(), headers={"task": "site.index", "id": name}, **as_json)
        expected = [reason for _, reason in VALUES.values()] * 2
        eventually(lambda: broker.depth(DEAD_SET) == len(expected), "all are dead")
        assert running.process.poll() is None
        assert "Stopping" not in running.log
    assert sorted(message.headers[REASON] for message in broker.take(DEAD_SET)) == sorted(expected)


def test_options_that_celery_cannot_obey_end_in_the_dead_set_and_the_worker_lives_on(
    environment: dict[str, str], settings: Settings, tmp_path: Path
) -> None:
    broker = Broker(settings.broker)
    as_json = {"content_type": "application/json", "content_encoding": "utf-8"}
    with worker({**environment, **BUDGET}, tmp_path / "worker.log") as running:
        for number, (headers, fields) in enumerate(OPTIONS):
            body = json.dumps({"args": [], "kwargs": {"url": "https://127.0.0.1:1/"}, **fields}).encode()
            broker.post(body, headers={"task": "site.index", "id": str(number), **headers}, **as_json)
        eventually(lambda: broker.depth(DEAD_SET) == len(OPTIONS), "all are dead")
        assert running.process.poll() is None
        assert "Stopping" not in running.log
    assert {message.headers[REASON] for message in broker.take(DEAD_SET)} == {"invalid-message"}


def test_what_py_amqp_cannot_decode_spends_its_budget_as_it_came_and_stops_neither_worker_nor_operator(
    environment: dict[str, str], settings: Settings, tmp_path: Path
) -> None:
    # This process reads such messages, too.
    amqp_internals.install()
    broker = Broker(settings.broker)
    with worker({**environment, **BUDGET}, tmp_path / "worker.log") as running:
        for name, properties in WIRE.items():
            post(settings, raw.Raw(b"no JSON: " + name.encode(), properties), "index")
        # A key that nothing is bound for leads to the dead set at once.
        post(settings, raw.Raw(b"no JSON: key", raw.headers()), raw.Key(b"caf\xe9"))
        eventually(lambda: broker.depth(DEAD_SET) == len(WIRE) + 1, "all are dead", seconds=120)
        assert running.process.poll() is None
    seen = listed(environment)
    dead = {bytes(message.body).removeprefix(b"no JSON: ").decode(): message for message in broker.take(DEAD_SET)}
    assert set(dead) == {*WIRE, "key"}
    assert dead.pop("key").delivery_info["routing_key"] == r"caf\xe9"
    assert all(message.headers[DEAD_ID] in seen for message in dead.values())
    # A task's message without a body of arguments is refused at once; the others were retried, and came back the same.
    ends = {name: (message.headers[REASON], message.headers[ATTEMPTS]) for name, message in dead.items()}
    assert ends.pop("ms-of-a-task") == ("invalid-message", 1)
    assert set(ends.values()) == {("undecodable", 2)}
    assert encoded(dead["ms"].headers["at"]) == encoded(dead["ms-of-a-task"].headers["at"]) == raw.timestamp(IN_MS)
    assert dead["ms-in-array"].headers["at"] == [2**64 - 1]
    assert dead["name"].headers[r"caf\xe9"] is True
    assert dead["content-type"].content_type == r"caf\xe9"
    assert encoded(dead["deep"].headers["deep"]) == raw.nested(9_000)
