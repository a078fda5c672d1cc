"""Requests go to the next searcher, the replies of several packs are merged; a proposed spelling is searched for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import cast
from unittest.mock import AsyncMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.broker.errors import InvalidMessage, Overloaded, RequestTimedOut, Unroutable
from app.broker.outgoing import Outgoing
from app.broker.rpc.requestor import Reply, Requestor
from app.cluster.client.contract import MAX_DOMAINS, MAX_MERGED
from app.cluster.client.corrected import search_corrected
from app.cluster.client.hedging import Deadline, HedgedRequest, SearcherBalancer, arun, run
from app.cluster.client.scatter_gather import interleave, merge, split_by_domain, validate_request
from app.cluster.protocol import ProblemReply, to_json
from app.errors import InvalidQuery, NotPlaced, PackCorrupt, PackNotFound, SearchTimeout
from app.search.contract import (
    Facet,
    Hit,
    PackHits,
    PackInfo,
    SearchReply,
    SearchRequest,
    SearchResult,
    Sort,
    SuggestRequest,
)
from app.search.snippet import Snippet
from config.routes import searcher_of
from tests.support.peers import route

pytestmark = pytest.mark.unit


def hit(url: str, score: float = 1.0, modified: str = "") -> Hit:
    return Hit(url=url, path="/", title=url, snippet=Snippet(""), headings=(), lang="", score=score, modified=modified)


def pack(domain: str, hits: Sequence[Hit], *, pages: int = 100, **changes: object) -> SearchReply:
    """Return all hits of one domain."""
    fields = {"estimated": False, "relaxed": False, "score_bound": 1.0, "total": len(hits), **changes}
    fields.setdefault("reachable", fields["total"])
    results = PackHits(hits=tuple(replace(each, domain=domain) for each in hits), **fields)  # type: ignore[arg-type]
    return SearchReply(info=PackInfo(domain=domain, generation="1", built_at="", pages=pages), results=results)


def part_of(pack: SearchReply, offset: int, limit: int) -> SearchReply:
    results = pack.results
    return replace(pack, results=replace(results, hits=results.hits[offset : offset + limit]))


def facet(name: str, counts: tuple[tuple[str, int], ...]) -> Facet:
    return Facet(name=name, counts=counts)


def ask(packs: Sequence[SearchReply], *, offset: int = 0, limit: int = 10, sort: Sort = "relevance") -> SearchResult:
    domains = tuple(each.info.domain for each in packs)
    question = validate_request(SearchRequest(q="words", domains=domains, offset=offset, limit=limit, sort=sort))
    outcomes = {
        request.domain: part_of(each, request.offset, request.limit)
        for each, request in zip(packs, split_by_domain(question), strict=True)
    }
    return merge(question, outcomes, 0.5)


def urls(found: SearchResult) -> list[str]:
    return [each.url for each in found.hits]


@st.composite
def packs(draw: st.DrawFn, *, least: int = 1, sort: str = "relevance") -> list[SearchReply]:
    """Draw packs as a searcher orders them: some leaders whatever their score, then by score; or all by date."""
    scores = st.floats(0.0, 1.0)
    score_bound = draw(st.sampled_from([1.0, 7.5]))
    made = []
    for number in range(draw(st.integers(least, 4))):
        leaders = draw(st.lists(scores, max_size=6))
        rest = sorted(draw(st.lists(scores, max_size=30)), reverse=True)
        dates = [draw(st.sampled_from(["2026-11-21", "2026-11-20", "2020-01-01", ""])) for _ in (*leaders, *rest)]
        shared = draw(st.sets(st.integers(0, 40), max_size=4))
        hits = [
            hit(f"https://{'both' if at in shared else number}.example/{at}", score * score_bound, date)
            for at, (score, date) in enumerate(zip((*leaders, *rest), dates, strict=True))
        ]
        if sort == "date":
            hits.sort(key=lambda each: each.modified, reverse=True)
        made.append(pack(f"{number}.example", hits, score_bound=score_bound, relaxed=draw(st.booleans())))
    return made


def whole(made: list[SearchReply], sort: Sort) -> list[str]:
    return urls(ask(made, limit=MAX_MERGED, sort=sort))


@given(st.data(), st.sampled_from(["relevance", "date"]), st.integers(1, 13))
def test_pages_of_any_size_are_parts_of_one_order(data: st.DataObject, sort: Sort, size: int) -> None:
    made = data.draw(packs(least=2, sort=sort))
    once = whole(made, sort)
    offsets = range(0, len(once) + size, size)
    paged = [url for at in offsets for url in urls(ask(made, offset=at, limit=size, sort=sort))]
    assert paged == once


@given(st.data(), st.sampled_from(["relevance", "date"]))
def test_each_pack_keeps_its_own_order_and_no_page_comes_twice(data: st.DataObject, sort: Sort) -> None:
    made = data.draw(packs(least=2, sort=sort))
    found = whole(made, sort)
    assert len(set(found)) == len(found)
    for each in made:
        own = [one.url for one in each.results.hits if one.url.startswith(f"https://{each.info.domain}/")]
        assert [url for url in found if url in own] in (own, [])


@given(packs(), st.integers(0, 40), st.integers(1, 20))
def test_the_result_for_one_domain_is_its_own_reply(made: list[SearchReply], offset: int, limit: int) -> None:
    alone = made[0]
    found, own = ask([alone], offset=offset, limit=limit), part_of(alone, offset, limit).results
    assert found.hits == own.hits
    assert (found.total, found.estimated, found.did_you_mean) == (own.total, own.estimated, own.did_you_mean)


@given(packs(least=2))
def test_pages_with_some_of_the_words_are_left_out_if_others_have_all(made: list[SearchReply]) -> None:
    found = ask(made, limit=MAX_MERGED)
    strict = [each for each in made if each.results.total and not each.results.relaxed]
    merged = strict or [each for each in made if each.results.total]
    assert found.total == sum(each.results.total for each in merged)
    assert found.relaxed == (bool(merged) and not strict)
    assert {each.domain for each in found.hits} <= {each.info.domain for each in merged}
    assert len(found.sources) == len(made)


def test_scores_are_compared_as_shares_of_the_best_possible_score() -> None:
    small = pack("small.example", [hit("s1", 0.9), hit("s2", 0.1)], score_bound=1.0)
    large = pack("large.example", [hit("l1", 8.0), hit("l2", 4.0)], score_bound=10.0)
    assert urls(ask([small, large])) == ["s1", "l1", "l2", "s2"]


def test_a_page_with_the_words_far_apart_comes_after_pages_of_another_pack_that_show_them_together() -> None:
    apart = pack("a.example", [replace(hit("apart", 1.0), coverage=0.5)])
    about = pack("b.example", [hit("first", 0.9), hit("second", 0.6), hit("third", 0.3)])
    assert urls(ask([apart, about])) == ["first", "second", "third", "apart"]


def test_packs_take_turns_on_a_tie() -> None:
    one = pack("one.example", [hit(f"a{at}", 0.5) for at in range(4)] + [hit("a4", 0.1)])
    two = pack("two.example", [hit("b0", 0.504), hit("b1", 0.498), hit("b2", 0.49)])
    assert urls(ask([one, two])) == ["a0", "b0", "a1", "b1", "a2", "a3", "b2", "a4"]


def test_a_hit_that_its_pack_puts_first_counts_as_its_best() -> None:
    named = pack("named.example", [hit("named", 0.1), hit("n2", 0.9)])
    other = pack("other.example", [hit("o1", 0.8), hit("o2", 0.7)])
    assert urls(ask([other, named])) == ["named", "n2", "o1", "o2"]
    assert urls(ask([other, named], limit=1)) == ["named"]


def test_facets_show_what_other_filters_would_find_of_pages_with_some_of_the_words() -> None:
    sections = facet("section", (("a", 2), ("b", 1)))
    filtered = pack("some.example", [], relaxed=True, facets=(sections,))
    assert ask([filtered, pack("none.example", [])]).facets == (sections,)
    assert ask([filtered, pack("all.example", [hit("h")])]).facets == ()


def test_hits_sorted_by_date_are_newest_first_and_undated_last() -> None:
    one = pack("one.example", [hit("a1", modified="2026-03-01"), hit("a2", modified="2025-01-01"), hit("a3")])
    two = pack("two.example", [hit("b1", 0.9, "2026-03-01"), hit("b2", 0.2, "2025-12-31"), hit("b3", 0.1)])
    assert urls(ask([two, one], sort="date")) == ["a1", "b1", "b2", "a2", "a3", "b3"]


def test_a_hit_that_shows_more_of_the_query_on_a_later_page_changes_no_earlier_page() -> None:
    hits = [replace(hit(f"a{at}", 0.5), coverage=0.5) for at in range(19)] + [hit("a19", 0.5)]
    made = [pack("a.example", hits), pack("b.example", [hit(f"b{at}", 0.3) for at in range(20)])]
    paged = [url for at in range(0, 40, 10) for url in urls(ask(made, offset=at, limit=10))]
    assert paged == whole(made, "relevance")


def test_counts_are_added_up_and_paging_is_limited() -> None:
    facets = (facet("lang", (("en", 5), ("fr", 2))), facet("type", (("text/html", 7),)))
    one = pack("one.example", [hit(f"a{at}", 0.5) for at in range(300)], facets=facets, total=1_900, estimated=True)
    two = pack("two.example", [hit("b", 0.6)], facets=(facet("lang", (("fr", 9),)),))
    found = ask([one, two], offset=195, limit=10)
    assert (found.total, found.estimated, found.reachable, len(found.hits)) == (1_901, True, MAX_MERGED, 5)
    assert found.facets == (
        facet("lang", (("fr", 11), ("en", 5))),
        facet("type", (("text/html", 7),)),
        facet("domain", (("one.example", 1_900), ("two.example", 1))),
    )
    assert ask([one, two], offset=200).hits == ()
    assert ask([one], offset=290).reachable == 1_900


def test_a_pack_without_hits_after_filtering_still_counts_in_facets() -> None:
    facets = (facet("section", (("library", 3),)),)
    gone, other = pack("gone.example", [], facets=facets), pack("other.example", [hit("o")])
    assert ask([gone]).facets == ask([gone, other]).facets == facets


def test_the_proposal_of_most_packs_is_used_unless_a_pack_has_matches_without_one() -> None:
    few = pack("few.example", [hit("f")], did_you_mean="benefits", pages=10)
    none = pack("none.example", [], did_you_mean="benefit", pages=5_000)
    enough = pack("enough.example", [hit("e")])
    assert ask([few, none]).did_you_mean == "benefit"
    assert ask([few, pack("z.example", [], did_you_mean="benefits", pages=1), none]).did_you_mean == "benefits"
    assert ask([few, none, enough]).did_you_mean == ""
    assert ask([pack("some.example", [hit("s")], relaxed=True), none]).did_you_mean == "benefit"


def test_suggestions_of_several_packs_are_interleaved() -> None:
    assert interleave([["a", "b", "c"], ["b", "d"], []], limit=3) == ("a", "b", "d")
    assert interleave([], limit=3) == ()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"domains": ()}, InvalidMessage),
        ({"domains": tuple(f"{at}.example" for at in range(MAX_DOMAINS + 1))}, InvalidMessage),
        ({"domains": ("a b",)}, InvalidMessage),
        ({"q": "?!"}, InvalidQuery),
        ({"q": "w" * 256}, InvalidQuery),
        ({"offset": -1}, InvalidQuery),
        ({"offset": 10_000}, InvalidQuery),
        ({"limit": 0}, InvalidQuery),
        ({"limit": 1_001}, InvalidQuery),
    ],
)
def test_invalid_requests_are_refused_before_they_are_sent(wrong: dict[str, object], error: type[Exception]) -> None:
    fields = {"q": "words", "domains": ("site.example",), **wrong}
    with pytest.raises(error):
        validate_request(SearchRequest(**fields))  # type: ignore[arg-type]


def test_domains_are_normalised_and_asked_once() -> None:
    question = validate_request(
        SearchRequest(q="words", domains=("Site.EXAMPLE", "https://site.example/x", "b.example"), offset=30)
    )
    assert question.domains == ("site.example", "b.example")
    assert [(each.domain, each.offset, each.limit) for each in split_by_domain(question)] == [
        ("site.example", 0, 40),
        ("b.example", 0, 40),
    ]


class Replicas:
    """A requestor of searchers that reply with these bytes or this reason code, are gone, or do not reply."""

    def __init__(self, replies: dict[str, bytes | str | Unroutable | None]) -> None:
        self._replies = replies

    def send(self, message: Outgoing, *, deadline: float) -> Future[Reply]:
        """Send a message to a searcher's queue."""
        assert deadline > 0
        found, reply = Future[Reply](), self._replies[searcher_of(message.routing_key) or ""]
        if isinstance(reply, str):
            reply = to_json(ProblemReply(reason=reply, detail="why"))
        if isinstance(reply, Unroutable):
            found.set_exception(reply)
        elif reply is not None:
            found.set_result(Reply(reply, {}, {}))
        return found


def hedged(searchers: SearcherBalancer, names: Sequence[str], deadline: Deadline) -> HedgedRequest[tuple[str, ...]]:
    question, no_replica = SuggestRequest(domain="a.example", q="w"), PackNotFound("a.example")
    kind = tuple[str, ...]
    return HedgedRequest(kind, question, names, no_replica=no_replica, deadline=deadline, searchers=searchers)


GOOD = b'["two"]'


@pytest.mark.parametrize(
    ("replies", "outcome", "counts"),
    [
        (["searcher-busy", GOOD], tuple, {"sent": 2, "busy": 1}),
        (["pack-not-loaded", GOOD], tuple, {"sent": 2, "not_loaded": 1}),
        (["pack-corrupt", GOOD], tuple, {"sent": 2, "failed": 1}),
        ([Unroutable("gone"), GOOD], tuple, {"sent": 2, "returned": 1}),
        ([None, GOOD], tuple, {"sent": 2, "hedged": 1}),
        (["searcher-busy", "searcher-busy"], Overloaded, {"sent": 2, "busy": 2}),
        (["pack-corrupt", "pack-not-loaded"], PackCorrupt, {"sent": 2, "failed": 1, "not_loaded": 1}),
        (["pack-not-loaded", "pack-not-loaded"], NotPlaced, {"sent": 2, "not_loaded": 2}),
        (["search-timeout", GOOD], SearchTimeout, {"sent": 1, "failed": 1}),
        (["invalid-query", GOOD], InvalidQuery, {"sent": 1, "failed": 1}),
        ([b"{}", b"no json"], PackCorrupt, {"sent": 2, "failed": 2}),
        ([None, None], RequestTimedOut, {"sent": 2, "hedged": 1}),
        ([None, "searcher-busy"], Overloaded, {"sent": 2, "hedged": 1, "busy": 1}),
        ([], PackNotFound, {}),
    ],
)
def test_the_first_good_reply_is_the_outcome_or_else_the_most_telling_error(
    replies: list[bytes | str | Unroutable | None], outcome: type[object], counts: dict[str, int]
) -> None:
    """An error that every searcher would reply with is final. After others, the next one gets the request at once."""
    names = ("one", "two")[: len(replies)]
    searchers = SearcherBalancer(cast("Requestor", Replicas(dict(zip(names, replies, strict=True)))))
    request = hedged(searchers, names, Deadline(0.0, 3.0, hedge_after=0.3))
    for now in (0.0, 0.1, 0.3, 0.4):
        request.advance(now)
    request.end()
    assert type(request.outcome) is outcome
    assert {name: number for name, number in searchers.counts().items() if number} == counts


def test_requests_are_spread_over_the_replicas_of_the_newest_version_by_those_in_flight() -> None:
    replies: dict[str, bytes | str | Unroutable | None] = dict.fromkeys(("one", "two", "old"))
    searchers = SearcherBalancer(cast("Requestor", Replicas(replies)))
    routed = route("a.example", "one", "two", "old", newest=2)
    orders = []
    for _ in range(3):
        orders.append(searchers.in_order(routed))
        searchers.send(SuggestRequest(domain="a.example", q="w"), orders[-1][0], seconds=1.0)
    assert orders == [["one", "two", "old"], ["two", "one", "old"], ["one", "two", "old"]]


@pytest.mark.parametrize("wait", [run, lambda *args: asyncio.run(arun(*args))], ids=["thread", "event loop"])
def test_silence_is_awaited_to_the_deadline(wait: Callable[..., None]) -> None:
    searchers = SearcherBalancer(cast("Requestor", Replicas({"one": None, "two": None})))
    deadline = Deadline.after(0.1, hedge_after=0.01)
    request = hedged(searchers, ("one", "two"), deadline)
    wait([request], deadline)
    assert time.monotonic() >= deadline.until
    assert isinstance(request.outcome, RequestTimedOut)


TYPED = SearchResult(
    total=1, estimated=False, relaxed=True, hits=(), reachable=1, seconds=0.1, sources=(), did_you_mean="garden"
)
FOUND = replace(TYPED, relaxed=False, did_you_mean="")


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (FOUND, replace(FOUND, corrected="garden", seconds=0.2)),
        (replace(FOUND, relaxed=True), TYPED),
        (SearchTimeout("late"), TYPED),
    ],
    ids=["all words", "some words", "error"],
)
def test_a_proposed_spelling_is_used_if_pages_have_all_of_its_words(
    second: SearchResult | Exception, expected: SearchResult
) -> None:
    client = AsyncMock(asearch=AsyncMock(side_effect=[TYPED, second]))
    request = SearchRequest(q="gardne", domains=("a.example",))
    assert asyncio.run(search_corrected(client, request)) == expected
    assert [call.args[0].q for call in client.asearch.await_args_list] == ["gardne", "garden"]
