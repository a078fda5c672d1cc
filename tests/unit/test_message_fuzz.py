"""Messages of any bytes: what decides about them raises nothing unforeseen, and what they become can be sent."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from amqp import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from app.broker import amqp_internals
from app.broker.amqp_internals import read_properties
from app.broker.delivery import Delivery, raw_body
from app.broker.errors import Undecodable, UnknownType
from app.broker.headers import DELIVERIES, is_suspect, is_uncounted, unacknowledged
from app.broker.outgoing import wire_message
from app.broker.policies.base import Dead, Decision, Drop, Postponed, Reject, Retry
from app.broker.worker.carry_out import message_of
from app.broker.worker.failures import message_id
from app.messages.envelopes import call_of_envelope, to_task_message
from app.topology.policies import retry_policies
from config.settings import Settings
from tests.support import raw
from tests.support.deliveries import FAILURE

pytestmark = pytest.mark.unit

amqp_internals.install()

#: With an archive, so that each policy has a queue.
POLICIES = retry_policies(Settings(_env_file=None, musicbrainz_url=SecretStr("postgresql://127.0.0.1/x")))
QUEUES = [*POLICIES.by_queue, "another"]

#: What is read of a message, besides whatever else it has.
NAMES = (
    *("task", "id", "expires", "eta", "timelimit", "compression", "x-death", "x-delivery-count", "x-acquired-count"),
    *("retry-timeout-ms", "retry-max", "current-iteration", "mb-retries", "mb-exceptions", "retry_info"),
    *("perennial-attempts", "perennial-first-failed-at", "perennial-replay-of", "perennial-replay", DELIVERIES),
    *("perennial-outcome-to", "perennial-dead-id"),
)

VALUES = st.recursive(
    st.one_of(
        st.just(b"V"),
        st.integers(-(2**63), 2**63 - 1).map(raw.integer),
        st.binary(max_size=40).map(raw.text),
        st.sampled_from([b"fresh", b"keep", b"5", b"-1", b"1e9", "äö".encode()]).map(raw.text),
        st.integers(0, 2**64 - 1).map(raw.timestamp),
        st.sampled_from([b"t\x01", b"b\xff", b"B\xff", b"U\xff\xff", b"u\xff\xff", b"i\xff\xff\xff\xff"]),
        st.binary(min_size=8, max_size=8).map(lambda value: b"d" + value),
        st.integers(0, 80).map(raw.nested),
    ),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda values: raw.array(*values))
        | st.lists(st.tuples(st.sampled_from([b"count", b"queue", b"reason", b"time", b""]), inner), max_size=4).map(
            lambda fields: raw.table(*(raw.field(name, value) for name, value in fields))
        )
    ),
    max_leaves=5,
)
FIELDS = st.tuples(st.sampled_from(NAMES).map(str.encode) | st.binary(max_size=12), VALUES)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
TYPES = st.sampled_from(["index", "crawl", "index+crawl", "start_timer", "reset_timer", "pack_full", "update", "tick"])
ENVELOPES = st.dictionaries(
    st.sampled_from(["url", "domain", "host", "crawl_id", "depth", "timeout", "callback_msg", "force"]),
    JSON,
    max_size=5,
).flatmap(lambda fields: st.just(fields) | TYPES.map(lambda kind: {**fields, "type": kind}))
BODIES = (
    st.binary(max_size=60)
    | JSON.map(lambda value: json.dumps(value).encode())
    | ENVELOPES.map(lambda value: json.dumps(value).encode())
    | ENVELOPES.map(lambda value: gzip.compress(json.dumps(value).encode()))
)
ENCODINGS = st.sampled_from([None, "", "utf-8", "latin-1", "gzip", "x-gzip", "binary", "idna", "zlib", "no such"])


def came(fields: list[tuple[bytes, bytes]], body: bytes, encoding: str | None, queue: str, again: bool) -> Delivery:
    """Return the delivery of these bytes, as the consumer decodes it."""
    properties, _ = read_properties(raw.headers(*(raw.field(name, value) for name, value in fields)), 0)
    return Delivery(
        body=raw_body(body, encoding),
        headers=properties["application_headers"],
        properties={"correlation_id": "c"},
        content_type="application/json",
        content_encoding=encoding,
        queue=queue,
        routing_key=queue,
        redelivered=again,
    )


class Channel:
    """Prepares messages as py-amqp's channel does, on a connection with RabbitMQ's largest frame by default."""

    connection = SimpleNamespace(frame_max=131_072)

    def prepare_message(self, body: bytes, *, properties: dict[str, Any], headers: Any, **more: Any) -> Message:
        more = {name: value for name, value in (more | properties).items() if value is not None}
        return Message(body, application_headers=headers, **more)


DELIVERIES_OF_ANY_BYTES = st.builds(
    came, st.lists(FIELDS, max_size=6), BODIES, ENCODINGS, st.sampled_from(QUEUES), st.booleans()
)


@settings(max_examples=400)
@given(DELIVERIES_OF_ANY_BYTES, st.booleans(), st.floats(0, 1e6))
def test_a_policy_decides_about_any_message_and_its_replacement_can_be_sent_and_read_again(
    delivery: Delivery, permanent: bool, seconds: float
) -> None:
    policy = POLICIES.policy_for(delivery.queue, delivery.headers.get("task"))
    assert 0 <= unacknowledged(delivery) < 2**63
    assert not (is_suspect(delivery) and unacknowledged(delivery) == 0)
    assert not is_uncounted(replace(delivery, redelivered=False))
    message_id(delivery).encode(errors="surrogateescape")
    decisions: list[Decision | None] = [
        policy.decide_before_run(delivery),
        policy.decide(delivery, replace(FAILURE, permanent=permanent)),
        policy.postpone(delivery, seconds),
    ]
    assert policy.attempts(delivery) >= 0
    assert policy.replay_headers(delivery.headers, "fresh")["perennial-replay"] == "fresh"
    for decision in decisions:
        if decision is None:
            continue
        assert isinstance(decision, Retry | Reject | Postponed | Dead | Drop)
        message = message_of(decision, delivery)
        if message is None:
            continue
        assert message.body == delivery.body
        sent, _ = read_properties(wire_message(Channel(), message)._serialize_properties(), 0)
        assert DELIVERIES not in sent["application_headers"]


@settings(max_examples=300)
@given(DELIVERIES_OF_ANY_BYTES)
def test_a_body_of_any_bytes_becomes_a_task_or_an_error_with_a_reason(delivery: Delivery) -> None:
    try:
        call = call_of_envelope(delivery)
    except (Undecodable, UnknownType):
        return
    message = to_task_message(delivery, call)
    args, kwargs, _ = json.loads(message.body)
    assert (args, kwargs.keys()) == ([], call.kwargs.keys())
    assert message.headers["task"] == call.task
