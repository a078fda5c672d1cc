"""Messages between orchestrator, searchers and search clients: their fields, and what is refused."""

from __future__ import annotations

import json
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.broker.errors import ApplicationError, InvalidMessage, RequestTimedOut, UnknownType
from app.broker.rpc.requestor import Reply
from app.cluster.client import cluster
from app.cluster.client.cluster import MAX_AGE, TOO_OLD, RouteCache
from app.cluster.protocol import (
    Load,
    OrderOutcome,
    PackVersion,
    ProblemReply,
    Routes,
    RoutesRequest,
    SearcherReport,
    error_of,
    problem_reply,
    read,
    to_json,
    to_payload,
)
from app.cluster.searcher.process import DRAIN
from app.errors import PackCorrupt, SearchUnavailable, StoreError
from app.search.contract import Filters, SearchRequest, SuggestRequest

pytestmark = pytest.mark.unit


_NUMBERS = st.integers(0, 2**53 - 1)
_VERSION = {"generation": _NUMBERS, "size_mb": _NUMBERS}
_PACK_VERSIONS = st.lists(st.builds(PackVersion, **_VERSION)).map(tuple)
_STATE = {"seq": _NUMBERS, "changes": _NUMBERS, "free_space": _NUMBERS, "capacity": _NUMBERS}
_OUTCOMES = st.builds(OrderOutcome, report=st.builds(SearcherReport, **_STATE))
_REGISTRATIONS = st.builds(SearcherReport, **_STATE, pack_versions=_PACK_VERSIONS)

_SEARCHES = st.builds(SearchRequest, domains=st.tuples(st.text()))


@given(st.one_of(st.builds(Load, **_VERSION), _OUTCOMES, _REGISTRATIONS, _SEARCHES))
def test_messages_survive_json_and_unknown_fields_are_ignored(message: Any) -> None:
    assert read(type(message), to_json(message)) == message
    assert read(type(message), {**to_payload(message), "added": [1]}) == message


def test_search_requests_have_the_documented_fields_in_the_documented_order() -> None:
    search = SearchRequest(domains=("a.example",), q="word", filters=Filters(lang="en"), languages=("de",))
    assert to_json(search) == (
        b'{"domain":"a.example","q":"word","offset":0,"limit":10,"sort":"relevance",'
        b'"filters":{"section":"","lang":"en","type":""},"languages":["de"]}'
    )
    assert to_payload(search) == json.loads(to_json(search))
    assert read(SearchRequest, to_payload(search)) == search
    assert to_json(SuggestRequest(domain="a.example", q="wo")) == b'{"domain":"a.example","q":"wo","limit":8}'


@pytest.mark.parametrize(
    "change",
    [{"domain": ["a.example"]}, {"q": 1}, {"limit": 0}, {"offset": -1}, {"sort": "size"}, {"filters": {"lang": None}}],
)
def test_search_requests_with_wrong_fields_are_refused(change: dict[str, Any]) -> None:
    payload = {"domain": "a.example", "q": "word"}
    assert read(SearchRequest, payload) == SearchRequest(domains=("a.example",), q="word")
    with pytest.raises(InvalidMessage, match=f"^invalid SearchRequest: {next(iter(change))}"):
        read(SearchRequest, payload | change)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UnknownType("type 'x'"), "invalid-query"),
        (SearchUnavailable("it is not known yet"), "not-placed"),
        (PackCorrupt("a.example: malformed"), "pack-corrupt"),
        (StoreError("away"), "pack-corrupt"),
    ],
)
def test_similar_errors_share_a_reply_code(error: ApplicationError, reason: str) -> None:
    assert problem_reply(error, process="searcher") == ProblemReply(reason=reason, detail=str(error))


def test_a_code_of_a_later_release_means_that_the_pack_cannot_be_read() -> None:
    error = error_of(ProblemReply(reason="pack-moved", detail="why"))
    assert (type(error), str(error)) == (PackCorrupt, "why")


def test_the_error_of_an_orchestrator_is_the_reason_why_there_are_no_routes() -> None:
    def look_up(_request: RoutesRequest, _seconds: float) -> Future[Reply]:
        found = Future[Reply]()
        found.set_result(Reply(to_json(problem_reply(KeyError(), process="orchestrator")), {}, {}))
        return found

    routes = RouteCache(look_up, deadline=0.1, count=lambda _name: None)
    with pytest.raises(SearchUnavailable, match=r"^the orchestrator failed; see its log$"):
        routes.get(until=0.0)


def test_old_routes_are_no_answer_for_operators_nor_after_a_failed_lookup_of_long_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(cluster, "time", SimpleNamespace(monotonic=lambda: now))
    first = Routes(orchestrator="o", ready=True, routes=(), searchers=())
    lookups: list[Future[Reply]] = []

    def look_up(_request: RoutesRequest, _seconds: float) -> Future[Reply]:
        lookups.append(Future())
        return lookups[-1]

    routes = RouteCache(look_up, deadline=0.1, count=lambda _name: None)
    assert routes.get_cached() is None
    lookups[-1].set_result(Reply(to_json(first), {}, {}))
    assert routes.get_cached() == routes.get_current(until=now) == first
    for _ in range(3):
        now += TOO_OLD - 1
        assert routes.get_cached() == first, "a lookup has failed within TOO_OLD"
        lookups[-1].set_exception(RequestTimedOut("3 s"))
    with pytest.raises(SearchUnavailable, match="the orchestrator did not answer"):
        routes.get_current(until=now)
    now += TOO_OLD + 1
    assert routes.get_cached() is None


@pytest.mark.parametrize("domain", ["\ud800", "x" * 200_000])
def test_text_that_json_cannot_carry_is_refused(domain: str) -> None:
    with pytest.raises(InvalidMessage, match="domain"):
        read(Load, {"domain": domain, "sha256": "0", "generation": 1, "size_mb": 1})
    assert b"invalid-query" in to_json(problem_reply(UnknownType(domain), process="searcher"))


def test_only_the_first_of_many_wrong_fields_are_named() -> None:
    report = {
        "searcher_id": "a",
        "seq": 1,
        "changes": 0,
        "free_space": 10**400,
        "pack_versions": [{"domain": 5}] * 10_000,
    }
    with pytest.raises(InvalidMessage, match=r"^invalid SearcherReport: free_space: .*and \d+ more$") as error:
        read(SearcherReport, report)
    assert len(str(error.value)) < 1_000


def test_a_leaving_searcher_drains_for_longer_than_routes_are_cached() -> None:
    assert DRAIN > MAX_AGE
