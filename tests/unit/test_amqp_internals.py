"""What arrives in any message can be read and goes out as it came; what the broker's refusal of a queue says."""

from __future__ import annotations

import pickle
import random
import struct
from datetime import datetime
from decimal import Decimal
from struct import pack
from typing import Any

import pytest
from amqp import Message, serialization
from amqp.exceptions import AccessRefused, NotFound, PreconditionFailed
from hypothesis import given
from hypothesis import strategies as st
from kombu import Queue
from pika.data import decode_table

from app.broker import amqp_internals
from app.broker.amqp_internals import (
    MAX_DEPTH,
    NestedTooDeep,
    read_arguments,
    read_properties,
)
from app.broker.connection import NodesConnection, backoff, broker_name, tls_options
from app.broker.declaring import RefusedDeclaration, node_down
from tests.support import raw

pytestmark = pytest.mark.unit

amqp_internals.install()

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    | st.datetimes(datetime(1970, 1, 1)).map(lambda moment: moment.replace(microsecond=0))
    | st.just(Decimal("1.5"))
)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)
BYTES = st.binary(max_size=255)


def decoded(properties: bytes) -> dict[str, Any]:
    found, end = read_properties(properties, 0)
    assert end == len(properties)
    return found


def encoded(properties: dict[str, Any]) -> bytes:
    return bytes(Message(b"", **properties)._serialize_properties())


@given(headers=st.dictionaries(NAMES, VALUES, max_size=5), text=NAMES, number=st.integers(0, 2**64 - 1))
def test_what_py_amqp_can_decode_is_decoded_the_same(headers: dict[str, Any], text: str, number: int) -> None:
    wire = encoded({"application_headers": headers, "content_type": text, "timestamp": number, "priority": 7})
    assert read_properties(wire, 0) == serialization.decode_properties_basic(wire, 0)


@given(name=BYTES, value=st.binary(max_size=300), at=st.integers(0, 2**64 - 1), text=BYTES, depth=st.integers(0, 200))
def test_undecodable_values_are_sent_again_unchanged(
    name: bytes, value: bytes, at: int, text: bytes, depth: int
) -> None:
    fields = [raw.field(b"1" + name[:254], raw.text(value)), raw.field(b"2", raw.array(raw.timestamp(at)))]
    headers = raw.headers(*fields, raw.field(b"3", raw.nested(depth)))
    assert encoded(decoded(headers)) == headers
    note = raw.text_property(0x0400, text)
    assert encoded(decoded(note)) == note


EDGES = st.sampled_from([edge + step for edge in (-(2**63), -(2**31), 0, 2**31, 2**32, 2**63 - 2) for step in (0, 1)])


@given(number=EDGES | st.integers(-(2**63), 2**63 - 1))
def test_an_integer_leaves_with_the_types_that_every_client_of_rabbitmq_reads(number: int) -> None:
    value = raw.integer(number)
    fields = [raw.field(b"1", value), raw.field(b"2", raw.table(raw.field(b"3", value)))]
    wire = raw.headers(*fields, raw.field(b"4", raw.array(value, raw.array(value))))
    headers = {"1": number, "2": {"3": number}, "4": [number, [number]]}
    assert encoded({"application_headers": headers}) == wire
    assert decode_table(wire, 2) == (headers, len(wire))
    assert decoded(wire) == {"application_headers": headers}


@pytest.mark.parametrize("kind", [b"L", b"l"])
def test_an_integer_of_another_client_leaves_with_the_type_that_every_client_reads(kind: bytes) -> None:
    came = raw.headers(raw.field(b"n", kind + pack(">q", 2**40)))
    assert encoded(decoded(came)) == raw.headers(raw.field(b"n", raw.integer(2**40)))


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
def test_an_integer_that_no_type_holds_is_an_error_and_no_half_of_it_is_sent(number: int) -> None:
    with pytest.raises(struct.error):
        encoded({"application_headers": {"n": number}})


@given(key=BYTES)
def test_any_routing_key_can_be_read_and_printed(key: bytes) -> None:
    [read], _ = read_arguments("s", pack("B", len(key)) + key, 0)
    assert str.encode(read, "utf-8").decode() == read
    assert serialization.dumps("s", [read]) == pack("B", len(key)) + key


@pytest.mark.parametrize("text", [b"a\xff", b"a\xed\xa0\x80"], ids=["not UTF-8", "half a surrogate pair"])
def test_any_property_and_any_name_of_a_header_can_be_printed(text: bytes) -> None:
    [note] = decoded(raw.text_property(0x0400, text)).values()
    headers = decoded(raw.headers(raw.field(text, raw.table(raw.field(text, raw.text(b"value"))))))
    [[name, table]] = headers["application_headers"].items()
    [inner] = table
    for read in (note, name, inner):
        assert (str.encode(read, "utf-8").decode(), read.encode()) == (read, text)


def test_tables_nested_too_deep_stay_encoded() -> None:
    value = decoded(raw.headers(raw.field(b"deep", raw.nested(20_000))))["application_headers"]["deep"]
    for _ in range(MAX_DEPTH):
        value = value[""]
    assert isinstance(value, NestedTooDeep)


@pytest.mark.parametrize("charset", ["punycode", "PunyCode", "-punycode-", "idna"])
def test_a_charset_that_takes_quadratic_time_decodes_nothing_and_goes_out_as_it_came(charset: str) -> None:
    properties = decoded(raw.text_property(0x4000, charset.encode()))
    in_a_pool_process = pickle.loads(pickle.dumps(properties["content_encoding"]))
    for name in (properties["content_encoding"], in_a_pool_process):
        # Both py-amqp and the reader of envelopes then leave it alone.
        with pytest.raises(LookupError):
            bytes(100).decode(name)
        assert name.encode() == charset.encode()
    assert encoded(properties) == raw.text_property(0x4000, charset.encode())


DOWN = "NOT_FOUND - home node 'rabbit@one' of durable queue 'site.dead' in vhost '/' is down or inaccessible"


def test_each_failure_doubles_the_backoff_up_to_a_limit_with_half_of_it_at_random(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for chance in (0, 1):
        monkeypatch.setattr(random, "random", lambda chance=chance: chance)
        pauses = [backoff(failures, first=1.0, longest=30.0) for failures in (1, 2, 3, 5, 6, 1_000_000)]
        assert pauses == [each * (1 + chance) / 2 for each in (1, 2, 4, 16, 30, 30)]


def test_only_a_queue_whose_node_is_down_has_a_node() -> None:
    assert node_down(NotFound(DOWN)) == "rabbit@one"
    assert node_down(NotFound("NOT_FOUND - no queue 'site.dead' in vhost '/'")) == ""
    assert node_down(AccessRefused(DOWN)) == node_down(OSError(DOWN)) == ""


def test_a_refusal_says_what_becomes_of_the_queue() -> None:
    queue = Queue("site.dead")
    assert str(RefusedDeclaration(queue, NotFound(DOWN))) == "its node rabbit@one is down; it returns with that node"
    other = RefusedDeclaration(queue, PreconditionFailed("PRECONDITION_FAILED - inequivalent arg 'x-queue-type'"))
    assert (other.differs, str(other)) == (True, "inequivalent arg 'x-queue-type'")
    full = "PRECONDITION_FAILED - cannot declare queue 'site.dead': queue limit in vhost '/' (20) is reached"
    assert not RefusedDeclaration(queue, PreconditionFailed(full)).differs


def test_each_node_of_a_list_has_its_certificate_checked_by_its_own_name() -> None:
    connection = NodesConnection("amqps://u:p@one.example//;amqps://u:p@two.example//", ssl=True)
    connection.switch("amqps://u:p@two.example//")
    assert (connection.hostname, connection.ssl) == ("two.example", {"server_hostname": "two.example"})
    assert tls_options("amqps://one.example//;amqps://two.example//") == {"server_hostname": "one.example"}


def test_the_name_of_a_broker_has_every_node_and_no_password() -> None:
    name = broker_name("amqp://u:secret@one.example:5672//;amqps://u:secret@[::1]:5671//")
    assert name == "amqp://u:**@one.example:5672//;amqps://u:**@[::1]:5671//"
