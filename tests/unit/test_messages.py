"""Messages of the `site` vocabulary: the tasks they call, and the invalid ones."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from app.broker.amqp_internals import MAX_BODY
from app.broker.delivery import Delivery
from app.broker.errors import ApplicationError, InvalidMessage, Undecodable, UnknownType
from app.crawl.urls import Target, parse_message_domain, parse_target
from app.errors import InvalidUrl, OutOfScope
from app.messages.envelopes import call_of_envelope, decode_envelope, site_message, to_task_message
from app.timers.timers import Callback, callback_of, timeout_of
from config.routes import ROUTE_BY_TYPE, ROUTES, callback_queue

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


def target(**message: Any) -> Target:
    return parse_target(message, scope="exact")


@pytest.mark.parametrize("kind", list(ROUTE_BY_TYPE))
def test_every_type_becomes_the_task_of_its_route(kind: str) -> None:
    delivery = plain(site_message(kind, domain="a.gov").body, message_id="m")
    envelope = to_task_message(delivery, call_of_envelope(delivery))
    assert (envelope.headers["task"], envelope.id) == (ROUTE_BY_TYPE[kind].task, "m")
    assert json.loads(envelope.body)[1] == {"domain": "a.gov"}
    assert envelope.headers["mine"] == 1


def test_the_key_host_is_read_as_domain() -> None:
    assert decode_envelope(b'{"type":"index","host":"a.gov"}') == {"type": "index", "domain": "a.gov"}


@pytest.mark.parametrize("kind", ["indx", "", None, 7, ["index"], {"index": 1}])
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


@pytest.mark.parametrize("value", [0, -1, "5", float("nan"), float("inf"), True, 10**9, [1]])
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
