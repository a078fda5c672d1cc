"""Messages of the `site` vocabulary: the tasks they call, the invalid ones, and any message at all."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from amqp import Message
from billiard.einfo import ExceptionInfo
from celery import Celery
from celery.exceptions import Terminated
from celery.worker.strategy import hybrid_to_proto2
from hypothesis import given, settings
from hypothesis import strategies as st
from kombu.message import Message as KombuMessage
from pydantic import SecretStr

from app.broker import amqp_internals
from app.broker.amqp_internals import MAX_BODY, read_properties
from app.broker.delivery import Delivery, own_headers, raw_body
from app.broker.errors import ApplicationError, InvalidMessage, Undecodable, UnknownType
from app.broker.headers import DELIVERIES, is_suspect, is_uncounted, unacknowledged
from app.broker.outgoing import wire_message
from app.broker.policies.base import Dead, Decision, Drop, Postponed, Reject, Retry, RetryPolicies, replacement_of
from app.broker.policies.drop import DropAll
from app.broker.worker.failures import message_id
from app.broker.worker.install import install
from app.broker.worker.request import Request
from app.crawl.urls import CrawlUrl, parse_crawl_url, parse_message_domain
from app.errors import InvalidUrl, OutOfScope
from app.messages.envelopes import call_of_envelope, decode_envelope, site_message, to_task_message
from app.timers.timers import Callback, callback_of, timeout_of
from app.topology.retry_policies import retry_policies
from config.routes import ROUTE_BY_TYPE, ROUTES, callback_queue
from config.settings import Settings
from tests.support import raw
from tests.support.deliveries import FAILURE

pytestmark = pytest.mark.unit


def plain(body: bytes, **properties: Any) -> Delivery:
    return Delivery(
        body=body,
        headers={"mine": 1},
        properties=properties,
        content_type=None,
        content_encoding=None,
        queue="site.index",
    )


def target(**message: Any) -> CrawlUrl:
    return parse_crawl_url(message)


@pytest.mark.parametrize("kind", list(ROUTE_BY_TYPE))
def test_every_type_becomes_the_task_of_its_route(kind: str) -> None:
    delivery = plain(site_message(kind, domain="a.gov").body, message_id="m")
    envelope = to_task_message(delivery, call_of_envelope(delivery))
    assert (envelope.headers["task"], envelope.id) == (ROUTE_BY_TYPE[kind].task, "m")
    assert json.loads(envelope.body)[1] == {"domain": "a.gov"}
    assert envelope.headers["mine"] == 1


def test_the_key_host_is_read_as_domain() -> None:
    assert decode_envelope(b'{"type":"index","host":"a.gov"}') == {"type": "index", "domain": "a.gov"}


def test_fields_and_headers_of_a_later_release_are_no_error() -> None:
    later = plain(b'{"type": "index", "url": "https://a.gov/", "weight": 7}')
    assert call_of_envelope(later).kwargs["weight"] == 7
    assert own_headers({"perennial-later": "kept", "x-death": []}) == {"perennial-later": "kept"}


@pytest.mark.parametrize("kind", ["index/2", "", None, 7, ["index"], {"index": 1}])
def test_an_unknown_type_is_rejected_with_the_known_ones(kind: Any) -> None:
    with pytest.raises(UnknownType, match=r"index\+crawl, index, crawl"):
        call_of_envelope(plain(json.dumps({"type": kind}).encode()))


@pytest.mark.parametrize(
    ("message", "url", "domain"),
    [
        ({"url": "https://Site.GOV"}, "https://site.gov/", "site.gov"),
        ({"domain": "site.gov"}, "https://site.gov/", "site.gov"),
        ({"domain": "site.gov", "path": "/a?b=1#c"}, "https://site.gov/a?b=1", "site.gov"),
        ({"domain": "site.gov:8080", "scheme": "http", "path": "/x"}, "http://site.gov:8080/x", "site.gov:8080"),
        ({"url": "http://site.gov:80/", "domain": "SITE.gov"}, "http://site.gov/", "site.gov"),
    ],
)
def test_a_page_is_named_by_url_or_by_domain_path_and_scheme(message: dict[str, Any], url: str, domain: str) -> None:
    page = target(**message)
    assert (page.url, page.domain) == (url, domain)


@pytest.mark.parametrize(
    ("message", "error", "says"),
    [
        ({}, InvalidMessage, "needs `url` or `domain`"),
        ({"url": 7}, InvalidMessage, "url: expected text, not int"),
        ({"url": ["https://u:hunter2@a.gov"]}, InvalidMessage, "url: expected text, not list"),
        ({"url": "ftp://a.gov/"}, InvalidUrl, "ftp://a.gov/"),
        ({"url": "https://user:pw@a.gov/"}, InvalidUrl, "a.gov"),
        ({"url": "https://a.gov/", "domain": "b.gov"}, OutOfScope, "https://a.gov/ is not in the domain b.gov"),
        ({"url": "https://a.gov/", "depth": -1}, InvalidMessage, "depth -1"),
        ({"url": "https://a.gov/", "depth": True}, InvalidMessage, "depth True"),
        ({"url": "https://a.gov/", "crawl_id": ["x"]}, InvalidMessage, "crawl_id"),
        ({"url": "https://a.gov/" + "x" * 3_000}, InvalidUrl, "2000"),
    ],
)
def test_an_invalid_page_is_rejected_with_the_reason(
    message: dict[str, Any], error: type[ApplicationError], says: str
) -> None:
    with pytest.raises(error) as refused:
        target(**message)
    assert says in str(refused.value)
    assert refused.value.permanent


def test_a_domain_may_be_given_as_a_url() -> None:
    assert parse_message_domain({"url": "https://Site.GOV/x"}) == "site.gov"


@pytest.mark.parametrize("value", [0, -1, "5", float("nan"), float("inf"), True, 10**9, 10**400, [1]])
def test_a_timeout_is_a_positive_number_of_seconds_within_a_week(value: Any) -> None:
    with pytest.raises(InvalidMessage, match="timeout"):
        timeout_of({"timeout": value}, default=300)


def test_without_a_timeout_the_default_applies() -> None:
    assert timeout_of({}, default=300) == 300


@pytest.mark.parametrize(
    ("name", "kind"),
    [("full_end", "pack_full"), ("incremental_end", "pack_incremental"), ("pack_full", "pack_full")],
)
def test_a_callback_may_have_a_name_of_the_reference_document(name: str, kind: str) -> None:
    callback = callback_of({"callback_msg": name, "callback_queue": "PACK"}, "a.gov")
    assert callback == Callback("site.pack", {"type": kind, "domain": "a.gov"})


@pytest.mark.parametrize(
    "message",
    [
        {"callback_msg": "explode"},
        {"callback_msg": 7},
        {"callback_msg": {"no": "type"}},
        {"callback_msg": "pack_full", "callback_queue": "site.pakc"},
        {"callback_msg": "pack_full", "callback_queue": 7},
        # A queue that drops what waits in it for a second.
        {"callback_msg": "pack_full", "callback_queue": "site.tick"},
        {"callback_msg": "tick"},
    ],
)
def test_an_invalid_callback_is_rejected(message: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage, match="callback"):
        callback_of(message, "a.gov")


def test_head_is_an_alias_of_the_index_queue() -> None:
    assert callback_queue("HEAD") == callback_queue("site.index") == "site.index"
    assert callback_queue("nope") is None


def test_every_task_has_a_route_and_every_route_a_task() -> None:
    from app.celery import app

    app.loader.import_default_modules()
    ours = {name for name in app.tasks if name.startswith("site.")}
    assert ours == {route.task for route in ROUTES}


@pytest.mark.parametrize("coding", ["gzip", "x-gzip"])
def test_an_envelope_may_be_compressed(coding: str) -> None:
    assert decode_envelope(gzip.compress(b'{"type":"index"}'), coding) == {"type": "index"}


@pytest.mark.parametrize(
    "body",
    [b"{}", b"", gzip.compress(b"{}")[:-1], gzip.compress(b"{}") + b"more", gzip.compress(bytes(MAX_BODY + 1))],
    ids=["plain", "empty", "cut", "longer", "bomb"],
)
def test_a_compressed_envelope_that_is_not_one_bounded_stream_is_undecodable(body: bytes) -> None:
    with pytest.raises(Undecodable):
        decode_envelope(body, "gzip")


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


#: Headers, and a body in Celery's older form, whose fields count where a header is missing.
WOULD_STOP_OR_WAIT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "texts as limits": ({"timelimit": ["x", "y"]}, {}),
    "one limit": ({"timelimit": [1]}, {}),
    "three limits": ({"timelimit": [1, 2, 3]}, {}),
    "limits in the body": ({}, {"timelimit": ["x", "y"]}),
    "a number of stamps": ({"stamped_headers": 5}, {}),
    "stamps in a list": ({"stamped_headers": [["group"]], "stamps": {}}, {}),
    "values of stamps": ({"stamped_headers": ["group"], "stamps": 5}, {}),
    "eta": ({"eta": "2999-01-01T00:00:00"}, {}),
    "eta in the body": ({}, {"eta": "2999-01-01T00:00:00"}),
}


@pytest.mark.parametrize("name", WOULD_STOP_OR_WAIT)
def test_a_tasks_message_that_would_stop_its_worker_or_wait_in_its_memory_is_invalid(name: str) -> None:
    headers, body = WOULD_STOP_OR_WAIT[name]
    app = Celery(set_as_current=False)
    message = KombuMessage(
        json.dumps({"args": [], "kwargs": {}, **body}),
        channel=None,
        headers={"task": "sell", "id": "a", **headers},
        content_type="application/json",
        content_encoding="utf-8",
    )
    contents, merged, decoded, utc = hybrid_to_proto2(message, message.payload)
    with pytest.raises(InvalidMessage):
        Request(
            message, app=app, task=app.tasks["celery.chain"], body=contents, headers=merged, decoded=decoded, utc=utc
        )


def sell() -> None:
    """Do nothing."""


class Unavailable:
    """A result backend that cannot be reached."""

    def mark_as_revoked(self, *_arguments: Any, **_options: Any) -> None:
        raise OSError("no space left")


def terminated() -> ExceptionInfo:
    """Return what the pool reports of a process that was killed by a signal."""
    try:
        raise Terminated(9)  # noqa: TRY301 - ExceptionInfo takes the exception at hand.
    except Terminated:
        return ExceptionInfo()


#: How a message is revoked, and what its event says: whether it expired, and whether its run was terminated.
REVOKED: dict[str, tuple[Callable[[Request], object], bool, bool]] = {
    "expired": (lambda request: request.revoked(), True, False),
    "terminated": (lambda request: request.terminate(SimpleNamespace(terminate_job=lambda *_: None)), False, True),
    "killed": (lambda request: request.on_failure(terminated()), False, True),
}


@pytest.mark.parametrize("how", REVOKED)
def test_a_revoked_message_is_announced_and_acknowledged_though_the_result_backend_cannot_be_reached(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    revoke, has_expired, is_terminated = REVOKED[how]
    app = Celery(set_as_current=False)
    install(app, RetryPolicies({}, default=DropAll()))
    outcomes: list[tuple[Any, ...]] = []
    app.failures = SimpleNamespace(
        report_outcome=lambda task, came, outcome, *, text: outcomes.append((task, came.queue, outcome, text))
    )
    app.task(sell, name="sell")
    app.tasks["sell"].backend = Unavailable()
    headers = {"task": "sell", "id": "a", "expires": "2020-01-01T00:00:00+00:00"}
    message = KombuMessage(
        "[[], {}, {}]",
        channel=None,
        headers=headers,
        delivery_info={"queue": "mail"},
        content_type="application/json",
        content_encoding="utf-8",
    )
    steps: list[Any] = []
    request: Any = Request(
        message,
        app=app,
        task=app.tasks["sell"],
        on_ack=lambda *_: steps.append("acknowledged"),
        eventer=SimpleNamespace(
            enabled=True, send=lambda type, **fields: steps.append((type, fields["expired"], fields["terminated"]))
        ),
    )
    request.time_start = 1.0
    assert revoke(request) in (True, None)
    assert steps == [("task-revoked", has_expired, is_terminated), "acknowledged"]
    assert outcomes == [("sell", "mail", "revoked", "expired" if has_expired else "terminated")]
    assert "sell[a] is revoked, and its result is not recorded: no space left" in caplog.text


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


def test_a_body_that_its_charset_cannot_encode_again_becomes_utf_8() -> None:
    assert raw_body("é", "latin-1") == b"\xe9"
    assert [raw_body("é", charset) for charset in ("ascii", "no such", None)] == ["é".encode()] * 3
    assert raw_body("\ud800", "utf-8") == b"\xed\xa0\x80"


class Channel:
    """Prepares messages as py-amqp's channel does, on a connection with RabbitMQ's largest frame by default."""

    connection = SimpleNamespace(frame_max=131_072)

    def prepare_message(self, body: bytes, *, properties: dict[str, Any], headers: Any, **more: Any) -> Message:
        more = {name: value for name, value in (more | properties).items() if value is not None}
        return Message(body, application_headers=headers, **more)


DELIVERIES_OF_ANY_BYTES = st.builds(
    came, st.lists(FIELDS, max_size=6), BODIES, ENCODINGS, st.sampled_from(QUEUES), st.booleans()
)


@settings(max_examples=200)
@given(DELIVERIES_OF_ANY_BYTES, st.booleans(), st.floats(0, 1e6))
def test_a_policy_decides_about_any_message_and_its_replacement_can_be_sent_and_read_again(
    delivery: Delivery, permanent: bool, seconds: float
) -> None:
    policy = POLICIES.policy_for(delivery.queue)
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
        message = replacement_of(decision, delivery)
        if message is None:
            continue
        assert message.body == delivery.body
        sent, _ = read_properties(wire_message(Channel(), message)._serialize_properties(), 0)
        assert DELIVERIES not in sent["application_headers"]


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
