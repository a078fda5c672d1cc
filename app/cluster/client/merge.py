"""The answers of several packs as one: one order, one count, no page twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, islice, zip_longest

from app.cluster.client.contract import MAX_MERGED
from app.search.contract import MAX_HITS, Facet, Hit, SearchReply, SearchRequest, SearchResult

#: What a hit is worth beside hits of other packs: its date where that decides, and its score.
_Worth = tuple[str, float]
#: The hits of one pack in its own order, each with its worth.
_Ranked = list[tuple[_Worth, Hit]]
#: Digits of a score that count: how rare a word is in each of two packs already makes a greater difference.
_DIGITS = 2


def merge(
    question: SearchRequest, answers: Sequence[SearchReply], *, seconds: float, silent: Sequence[tuple[str, str]] = ()
) -> SearchResult:
    """Return the page that a checked question asks for, from answers to its `requests_of`, in the order of its domains.

    Each pack's own order is kept. Between packs the better score decides, as a share of the best that there could be,
    or the later date. Packs in which no page has all the words are left out while another has such a page.
    """
    telling = _telling(answers)
    relaxed = any(answer.results.relaxed for answer in telling)
    window = MAX_HITS if len(question.domains) == 1 else MAX_MERGED
    total = sum(answer.results.total for answer in telling)
    return SearchResult(
        total=total,
        capped=any(answer.results.capped for answer in telling),
        relaxed=relaxed,
        hits=tuple(_page(question, telling)),
        reachable=min(total, window),
        seconds=seconds,
        sources=tuple(answer.info for answer in answers),
        silent=tuple(silent),
        # Those of a pack whose pages were all filtered away count, too: they say what else there is.
        facets=_facets(answer for answer in answers if answer.results.relaxed == relaxed),
        did_you_mean=_suggestion(answers),
    )


def interleave(lists: Iterable[Sequence[str]], *, limit: int) -> tuple[str, ...]:
    """Return the first of each list, then the second of each, and so on; each text once."""
    rounds = zip_longest(*lists)
    return tuple(islice(dict.fromkeys(text for each in rounds for text in each if text is not None), limit))


def _telling(answers: Sequence[SearchReply]) -> list[SearchReply]:
    """Return the answers that count: those with all the words, or else those with some of them."""
    found = [answer for answer in answers if answer.results.total]
    return [answer for answer in found if not answer.results.relaxed] or found


def _page(question: SearchRequest, answers: Sequence[SearchReply]) -> Iterator[Hit]:
    if len(question.domains) == 1:  # It was asked for this page.
        return (hit for answer in answers for hit in _hits(answer))
    end = min(question.offset + question.limit, MAX_MERGED)
    ranked = _by_date(answers) if question.sort == "date" else _by_score(answers)
    return islice(_once(_in_order(ranked)), min(question.offset, end), end)


def _hits(answer: SearchReply) -> Iterator[Hit]:
    """Yield the hits, each with the domain that it is of."""
    return (hit if hit.domain else replace(hit, domain=answer.info.domain) for hit in answer.results.hits)


def _in_order(packs: Iterable[_Ranked]) -> Iterator[Hit]:
    """Yield the best of what comes next in each pack, again and again; among equals, that of the pack which had fewer.

    What comes first so depends on the first hits of each pack alone: pages of any size are parts of one order.
    """
    lists = list(packs)
    had = [0] * len(lists)
    while rest := [at for at, pack in enumerate(lists) if had[at] < len(pack)]:
        best = max(rest, key=lambda at: (lists[at][had[at]][0], -had[at]))
        yield lists[best][had[best]][1]
        had[best] += 1


def _by_score(answers: Sequence[SearchReply]) -> Iterator[_Ranked]:
    """Rank by score. What a pack puts before a hit counts as no worse than that hit, whatever its own score is."""
    for answer, best in zip(answers, _best(answers), strict=True):
        hits = list(_hits(answer))
        onwards = list(accumulate((hit.score for hit in reversed(hits)), max))[::-1]
        yield [(("", round(score / best, _DIGITS)), hit) for score, hit in zip(onwards, hits, strict=True)]


def _best(answers: Sequence[SearchReply]) -> list[float]:
    """Return the score that is the best possible in each pack.

    Where one of them does not tell, it is that of the best page found in each: so none of them stands back.
    """
    ideals = [answer.results.ideal for answer in answers]
    if min(ideals, default=0.0) > 0:
        return ideals
    return [max((hit.score for hit in answer.results.hits), default=0.0) or 1.0 for answer in answers]


def _by_date(answers: Sequence[SearchReply]) -> Iterator[_Ranked]:
    """Rank by date, pages without one last, and within a day by score where all packs' scores can be compared."""
    comparable = all(answer.results.ideal > 0 for answer in answers)
    for answer in answers:
        ideal = answer.results.ideal
        share = [round(hit.score / ideal, _DIGITS) if comparable else 0.0 for hit in answer.results.hits]
        yield [((hit.modified, each), hit) for each, hit in zip(share, _hits(answer), strict=True)]


def _once(hits: Iterable[Hit]) -> Iterator[Hit]:
    """Leave out a page that was there before: two packs may overlap, where one is of hosts below the other's."""
    seen: set[str] = set()
    for hit in hits:
        if hit.url not in seen:
            seen.add(hit.url)
            yield hit


def _facets(answers: Iterable[SearchReply]) -> tuple[Facet, ...]:
    """Add the counts up, most first; among equals, in the order of the packs."""
    told = [answer.results.facets for answer in answers]
    if len(told) == 1:  # There is nothing to add.
        return told[0]
    sums: dict[str, Counter[str]] = {}
    for facets in told:
        for facet in facets:
            sums.setdefault(facet.name, Counter()).update(dict(facet.counts))
    return tuple(Facet(name=name, counts=tuple(counts.most_common())) for name, counts in sums.items())


def _suggestion(answers: Sequence[SearchReply]) -> str:
    """Return what most packs propose instead, in doubt the larger ones; nothing where one of them found enough."""
    enough = [answer for answer in answers if answer.results.total and not answer.results.relaxed]
    proposing = [answer for answer in answers if answer.results.did_you_mean]
    if not proposing or any(not answer.results.did_you_mean for answer in enough):
        return ""
    votes: Counter[str] = Counter()
    pages: Counter[str] = Counter()
    for answer in proposing:
        votes[answer.results.did_you_mean] += 1
        pages[answer.results.did_you_mean] += answer.info.pages
    return max(votes, key=lambda text: (votes[text], pages[text]))
