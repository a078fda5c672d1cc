"""Check a search, split it into one request per domain, and merge the replies: one order, one count, no page twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, islice, zip_longest
from typing import TypeVar

from app.broker.errors import UNAVAILABLE, ApplicationError, InvalidMessage
from app.cluster.client.contract import MAX_DOMAINS, MAX_MERGED
from app.crawl.urls import parse_domain
from app.errors import BROKEN, InvalidQuery, PackNotFound
from app.search.contract import (
    MAX_HITS,
    MAX_LIMIT,
    MAX_SUGGESTIONS,
    BestBet,
    Facet,
    Filters,
    Hit,
    SearchReply,
    SearchRequest,
    SearchResult,
    SuggestRequest,
)
from app.search.query import parse

T = TypeVar("T")

#: Hits of a pack that are compared with each other, and that each of several domains returns at least. A pack may put
#: a page first although its score is low. How good that page is only shows beside the best score behind it.
LOOK_AHEAD = 10

#: Best bets of one result.
MAX_BEST_BETS = 5

#: Digits of a score that count. The rarity of a word differs by more than that between two packs.
_DIGITS = 2
#: Power of a hit's coverage in its score. A pack raises its best passages, however little of the query they have.
_COVERAGE = 2


def validate_request(request: SearchRequest) -> SearchRequest:
    """Return the request with its domains as they are indexed, each once.

    Raises InvalidUrl for an invalid domain and InvalidMessage for a wrong number of domains. Raises InvalidQuery for a
    page that cannot exist or a text without words.
    """
    parse(request.q)
    if not 0 <= request.offset < MAX_HITS:
        raise InvalidQuery(f"offset {request.offset}: expected 0 to {MAX_HITS - 1}")
    if not 1 <= request.limit <= MAX_LIMIT:
        raise InvalidQuery(f"limit {request.limit}: expected 1 to {MAX_LIMIT}")
    return replace(request, domains=_parse_domains(request.domains))


def split_by_domain(request: SearchRequest) -> tuple[SearchRequest, ...]:
    """Return one request per domain of a checked request, in the order of its domains.

    A single domain returns the page itself. Each of several domains returns all hits that may be on it, and those
    that decide about their ranks.
    """
    if len(request.domains) == 1:
        return (request,)
    groups = -(-(request.offset + request.limit) // LOOK_AHEAD)
    limit = min(groups * LOOK_AHEAD, MAX_MERGED)
    return tuple(replace(request, domains=(domain,), offset=0, limit=limit) for domain in request.domains)


def split_suggestions(domains: Iterable[str], q: str, limit: int) -> tuple[SuggestRequest, ...]:
    """Return one request for at most MAX_SUGGESTIONS suggestions per domain; raises as `validate_request` does."""
    parse(q)
    limit = min(max(limit, 1), MAX_SUGGESTIONS)
    return tuple(SuggestRequest(domain=domain, q=q, limit=limit) for domain in _parse_domains(domains))


def _parse_domains(domains: Iterable[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(parse_domain(domain) for domain in domains))
    if not 1 <= len(names) <= MAX_DOMAINS:
        raise InvalidMessage(f"{len(names)} domains: 1 to {MAX_DOMAINS} are searched at a time")
    return names


def gather_replies(outcomes: Mapping[str, T | ApplicationError]) -> tuple[list[T], tuple[tuple[str, str], ...]]:
    """Return the replies of the domains, and (domain, reason) of those without one; `outcomes` are in request order.

    Raises the error of an invalid request or of a domain that was never indexed. Raises the first error if no domain
    replied.
    """
    errors = {domain: outcome for domain, outcome in outcomes.items() if isinstance(outcome, ApplicationError)}
    replies = [outcome for outcome in outcomes.values() if not isinstance(outcome, ApplicationError)]
    final = [error for error in errors.values() if isinstance(error, InvalidQuery | InvalidMessage | PackNotFound)]
    for error in (*final, *(() if replies else errors.values())):
        raise error
    # Visitors read these reasons, and the text of an unreachable or broken service names brokers and files.
    return replies, tuple(
        (domain, error.problem.title if error.problem in (UNAVAILABLE, BROKEN) else str(error))
        for domain, error in errors.items()
    )


def merge(
    request: SearchRequest, outcomes: Mapping[str, SearchReply | ApplicationError], seconds: float
) -> SearchResult:
    """Return the page of hits of a checked request from the outcomes of its domains; raises as `gather_replies` does.

    Each pack's own order is kept. Between packs the better score decides, as a share of the best possible one, or the
    later date. A hit that does not show all of the query in one place counts less: its pack may have no better one.
    Packs in which no page has all the words are left out if another pack has such a page. Only the first page of hits
    has best bets, and only without filters.
    """
    replies, silent = gather_replies(outcomes)
    with_hits = [reply for reply in replies if reply.results.total]
    merged = [reply for reply in with_hits if not reply.results.relaxed] or with_hits
    relaxed = any(reply.results.relaxed for reply in merged)
    # Where filters leave no hit, all that they left out may be relaxed.
    counted = merged or [reply for reply in replies if reply.results.facets]
    are_relaxed = all(reply.results.relaxed for reply in counted)
    total = sum(reply.results.total for reply in merged)
    if len(request.domains) == 1:  # The searcher returned exactly this page.
        hits = tuple(hit for reply in merged for hit in reply.results.hits)
    else:
        end = min(request.offset + request.limit, MAX_MERGED)
        in_order = _interleave_by_rank(merged, by_date=request.sort == "date")
        hits = tuple(islice(in_order, min(request.offset, end), end))
    return SearchResult(
        total=total,
        estimated=any(reply.results.estimated for reply in merged),
        relaxed=relaxed,
        hits=hits,
        reachable=min(
            sum(reply.results.reachable for reply in merged), MAX_MERGED if len(request.domains) > 1 else MAX_HITS
        ),
        seconds=seconds,
        sources=tuple(reply.info for reply in replies),
        silent=silent,
        # A pack whose pages were all filtered away counts too: its facets show what other filters would find.
        facets=_facets([reply for reply in replies if reply.results.relaxed == are_relaxed], merged),
        did_you_mean=_did_you_mean(replies),
        best_bets=() if request.offset or request.filters != Filters() else _best_bets(replies),
    )


def interleave(lists: Iterable[Sequence[str]], *, limit: int) -> tuple[str, ...]:
    """Return the first text of each list, then the second of each, and so on; each text once."""
    rounds = zip_longest(*lists)
    return tuple(islice(dict.fromkeys(text for each in rounds for text in each if text is not None), limit))


def _interleave_by_rank(replies: Sequence[SearchReply], *, by_date: bool) -> Iterator[Hit]:
    """Yield the best of the next hits of all packs, again and again; on a tie that of the pack which gave fewer hits.

    By date, undated hits come last, and within a day the score decides. The order depends only on the hits before it in
    each pack, so pages of any size are parts of the same order. A link that came before is left out: packs overlap if
    the hosts of one are below the other's.
    """
    ranks: list[list[tuple[str, float]]] = []
    for results in (reply.results for reply in replies):
        scores = [hit.score * hit.coverage**_COVERAGE for hit in results.hits]
        if not by_date:
            # A hit that its pack puts before another one counts as no worse than that one. Only hits of one group are
            # compared: those of later groups are not there on each page of results, and would change the order.
            groups = (scores[at : at + LOOK_AHEAD] for at in range(0, len(scores), LOOK_AHEAD))
            scores = [score for group in groups for score in reversed([*accumulate(reversed(group), max)])]
        scores = [round(score / results.score_bound, _DIGITS) for score in scores]
        dates = [hit.modified if by_date else "" for hit in results.hits]
        ranks.append(list(zip(dates, scores, strict=True)))
    given = [0] * len(replies)
    seen: set[str] = set()
    while left := [at for at, each in enumerate(ranks) if given[at] < len(each)]:
        best = max(left, key=lambda at: (ranks[at][given[at]], -given[at]))
        hit = replies[best].results.hits[given[best]]
        given[best] += 1
        if hit.link not in seen:
            seen.add(hit.link)
            yield hit


def _facets(replies: Sequence[SearchReply], with_hits: Sequence[SearchReply]) -> tuple[Facet, ...]:
    """Add up the counts, most pages first, and count the domains with hits if there are several.

    On a tie the packs' order decides.
    """
    sums: dict[str, Counter[str]] = {}
    for facet in (each for reply in replies for each in reply.results.facets):
        sums.setdefault(facet.name, Counter()).update(dict(facet.counts))
    if len(with_hits) > 1:
        sums["domain"] = Counter({reply.info.domain: reply.results.total for reply in with_hits})
    return tuple(Facet(name=name, counts=tuple(counts.most_common())) for name, counts in sums.items())


def _best_bets(replies: Iterable[SearchReply]) -> tuple[BestBet, ...]:
    """Return the best bets of the packs in their order, at most MAX_BEST_BETS, each URL once."""
    by_url: dict[str, BestBet] = {}
    for best_bet in (each for reply in replies for each in reply.results.best_bets):
        by_url.setdefault(best_bet.url, best_bet)
    return tuple(by_url.values())[:MAX_BEST_BETS]


def _did_you_mean(replies: Sequence[SearchReply]) -> str:
    """Return what most packs propose, on a tie the larger packs; empty if a pack has matches and proposes nothing."""
    proposing = [reply for reply in replies if reply.results.did_you_mean]
    found = [reply for reply in replies if reply.results.total and not reply.results.relaxed]
    if not proposing or any(not reply.results.did_you_mean for reply in found):
        return ""
    votes: Counter[str] = Counter()
    pages: Counter[str] = Counter()
    for reply in proposing:
        votes[reply.results.did_you_mean] += 1
        pages[reply.results.did_you_mean] += reply.info.pages
    return max(votes, key=lambda text: (votes[text], pages[text]))
