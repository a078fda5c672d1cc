"""A message that goes round through a failure is the one that was posted, whatever it is."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from amqp import Message
from kombu import Connection

from app.broker.delivery import Delivery
from app.broker.outgoing import Outgoing
from app.broker.publishing import Publisher
from app.messages.envelopes import decode_envelope

pytestmark = pytest.mark.integration


@pytest.fixture
def channel(broker_url: str) -> Iterator[Any]:
    with Connection(broker_url) as connection, connection.channel() as channel:
        channel.queue_declare("q", durable=True, auto_delete=False)
        yield channel


def posted(channel: Any, message: Message) -> Delivery:
    channel.basic_publish_confirm(message, exchange="", routing_key="q", timeout=60)
    return taken(channel)


def taken(channel: Any) -> Delivery:
    return Delivery.of(channel.message_to_python(channel.basic_get("q", no_ack=True)), "q")


def again(channel: Any, publisher: Publisher, delivery: Delivery) -> Delivery:
    publisher.publish([Outgoing.replacing(delivery, exchange="", routing_key="q", headers={})])
    return taken(channel)


def test_a_body_of_any_charset_is_retried_unchanged(channel: Any, publisher: Publisher) -> None:
    text = '{"domain": "köln.example"}'
    for charset in ("utf-8", "latin-1", "utf-16", "utf-8-sig", "cp1252", "no-such-charset", "binary"):
        body = text.encode("utf-8" if charset in ("no-such-charset", "binary") else charset)
        first = posted(channel, Message(body, content_encoding=charset))
        second = again(channel, publisher, first)
        assert first.body == second.body == body, charset
        assert second.content_encoding == charset
        assert decode_envelope(second.body, second.content_encoding) == {"domain": "köln.example"}, charset


def test_a_decompression_bomb_is_not_decompressed_and_is_retried_unchanged(channel: Any, publisher: Publisher) -> None:
    for compression, body in (
        ("gzip", zlib.compress(bytes(2**26), 9)),
        ("bzip2", bz2.compress(bytes(2**25))),
        ("lzma", lzma.compress(bytes(2**25), preset=0)),
        ("gzip", zlib.compress(b"[]")[:-1]),
        ("zstd", b"(\xb5/\xfd"),
    ):
        headers = {"compression": compression}
        first = posted(channel, Message(body, application_headers=headers))
        second = again(channel, publisher, first)
        assert (second.body, second.headers) == (body, headers), compression


def test_a_compressed_message_goes_round_readable_and_a_broken_one_as_it_came(
    channel: Any, publisher: Publisher
) -> None:
    gzip = {"compression": "application/x-gzip"}
    first = posted(channel, Message(zlib.compress(b"[]"), application_headers=gzip, content_encoding="utf-8"))
    second = again(channel, publisher, first)
    assert (second.body, second.headers) == (b"[]", {})
    broken = posted(channel, Message(b"no gzip", application_headers=gzip))
    assert (broken.body, broken.headers) == (b"no gzip", gzip)
    third = again(channel, publisher, broken)
    assert (third.body, third.headers) == (broken.body, broken.headers)
