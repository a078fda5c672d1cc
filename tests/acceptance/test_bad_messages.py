"""Messages that no client should send: each ends in the dead set, and the worker lives on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from amqp import serialization
from kombu import Connection

from app.broker import amqp_internals
from app.broker.headers import ATTEMPTS, DEAD_ID, REASON
from app.private_services import Urls
from app.topology.queues import DEAD_SET
from tests.support import raw
from tests.support.broker import Broker
from tests.support.command import perennial
from tests.support.corner import environment_of, own_settings
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
    **{f"{depth} levels": ("[" * depth + "]" * depth, "invalid-message") for depth in (101, 940, 100_000)},
}

AS_JSON = {"content_type": "application/json", "content_encoding": "utf-8"}


def encoded(value: Any) -> bytes:
    """Return a header's value as py-amqp sends it."""
    out = bytearray()
    serialization._write_item(value, out.extend, [])
    return bytes(out)


@dataclass(frozen=True)
class Ended:
    """What a worker made of all messages: the dead letters by their ids or bodies, and an operator's list of them."""

    letters: Mapping[str, Any]
    listed: str

    def reason(self, name: str) -> str:
        """Return the reason under which a message died."""
        return str(self.letters[name].headers[REASON])


@pytest.fixture(scope="module")
def ended(services: Urls, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Send all messages to one worker, which must live on."""
    # This process reads such messages, too.
    amqp_internals.install()
    folder = tmp_path_factory.mktemp("bad")
    with own_settings(services, folder) as settings:
        environment = {**environment_of(settings), "RETRY_TIMEOUT_MS": "100", "RETRY_MAX": "1"}
        broker = Broker(settings.broker)
        with worker(environment, folder / "worker.log") as running:
            number = post_all(broker, settings.broker)
            eventually(lambda: broker.depth(DEAD_SET) == number, "all are dead", seconds=120)
            assert running.process.poll() is None
            assert "Stopping" not in running.log
        done = perennial(environment, "dead", "list", "--json")
        assert done.returncode == 0, done.stderr
        letters = {_name(each): each for each in broker.take(DEAD_SET)}
        assert len(letters) == number
    return Ended(letters, done.stdout)


def post_all(broker: Broker, url: str) -> int:
    """Send the messages; return how many."""
    for number, (headers, _) in enumerate(BAD):
        broker.post(f"no JSON: headers {number}".encode(), headers=headers)
    for name, (value, _) in VALUES.items():
        envelope = f'{{"type": "index", "url": "https://127.0.0.1:1/", "x": {value}}}'
        broker.post(envelope.encode(), message_id=name)
        task = {"task": "site.index", "id": name}
        broker.post(f"[[{value}], {{}}, {{}}]".encode(), headers=task, message_id=f"{name} of a task", **AS_JSON)
    older = json.dumps({"args": [], "kwargs": {"url": "https://127.0.0.1:1/"}, "eta": "2999-01-01T00:00:00"})
    broker.post(older.encode(), headers={"task": "site.index", "id": "older"}, message_id="older", **AS_JSON)
    with Connection(url) as connection, connection.channel() as channel:
        for name, properties in WIRE.items():
            message = raw.Raw(b"no JSON: " + name.encode(), properties)
            channel.basic_publish_confirm(message, exchange="site", routing_key="index", timeout=30)
        # A key that nothing is bound for leads to the dead set at once.
        unroutable, key = raw.Raw(b"no JSON: key", raw.headers()), raw.Key(b"caf\xe9")
        channel.basic_publish_confirm(unroutable, exchange="site", routing_key=key, timeout=30)
    return len(BAD) + 2 * len(VALUES) + 1 + len(WIRE) + 1


def _name(letter: Any) -> str:
    body = bytes(letter.body) if not isinstance(letter.body, str) else letter.body.encode()
    _, prefix, name = body.partition(b"no JSON: ")
    return name.decode() if prefix else str(letter.properties["message_id"])


def test_absurd_headers_end_in_the_dead_set(ended: Ended) -> None:
    expected = {f"headers {number}": reason for number, (_, reason) in enumerate(BAD)}
    assert {name: ended.reason(name) for name in expected} == expected


def test_a_body_that_python_cannot_read_or_pass_on_ends_in_the_dead_set(ended: Ended) -> None:
    for name, (_, reason) in VALUES.items():
        assert [ended.reason(each) for each in (name, f"{name} of a task")] == [reason] * 2, name
    assert ended.reason("older") == "invalid-message"


def test_what_py_amqp_cannot_decode_spends_its_budget_as_it_came_and_an_operator_can_list_it(ended: Ended) -> None:
    dead = {name: ended.letters[name] for name in WIRE}
    assert ended.letters["key"].delivery_info["routing_key"] == r"caf\xe9"
    assert all(message.headers[DEAD_ID] in ended.listed for message in dead.values())
    # A task's message without a body of arguments is refused at once; the others were retried, and came back the same.
    ends = {name: (message.headers[REASON], message.headers[ATTEMPTS]) for name, message in dead.items()}
    assert ends.pop("ms-of-a-task") == ("invalid-message", 1)
    assert set(ends.values()) == {("undecodable", 2)}
    assert encoded(dead["ms"].headers["at"]) == encoded(dead["ms-of-a-task"].headers["at"]) == raw.timestamp(IN_MS)
    assert dead["ms-in-array"].headers["at"] == [2**64 - 1]
    assert dead["name"].headers[r"caf\xe9"] is True
    assert dead["content-type"].content_type == r"caf\xe9"
    assert encoded(dead["deep"].headers["deep"]) == raw.nested(9_000)
