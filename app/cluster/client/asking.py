"""What a question comes to before anybody is asked: checked, and split into one request a domain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from app.broker.errors import ApplicationError, InvalidMessage
from app.cluster.client.contract import MAX_DOMAINS, MAX_MERGED
from app.crawl.urls import parse_domain
from app.errors import InvalidQuery, PackNotFound
from app.search.contract import MAX_HITS, MAX_LIMIT, MAX_SUGGESTIONS, SearchRequest, SuggestRequest
from app.search.query import parse

T = TypeVar("T")

#: Hits that each of several domains is asked for at least. What a pack puts first whatever its score is among them with
#: the best of the others behind it, and only both together say how good it is: app/cluster/client/merge.py.
LOOK_AHEAD = 10


def checked(question: SearchRequest) -> SearchRequest:
    """Return the question with its domains as they are indexed, each once.

    Raises InvalidUrl for what is no domain, InvalidMessage for a wrong number of domains or a page that cannot be, and
    InvalidQuery for words that cannot be searched for.
    """
    parse(question.q)
    if not 0 <= question.offset < MAX_HITS:
        raise InvalidQuery(f"offset {question.offset}: expected 0 to {MAX_HITS - 1}")
    if not 1 <= question.limit <= MAX_LIMIT:
        raise InvalidQuery(f"limit {question.limit}: expected 1 to {MAX_LIMIT}")
    return replace(question, domains=named(question.domains))


def named(domains: Iterable[str]) -> tuple[str, ...]:
    """Return domains as they are indexed, each once; raises InvalidUrl, or InvalidMessage for none or too many."""
    names = tuple(dict.fromkeys(parse_domain(domain) for domain in domains))
    if not 1 <= len(names) <= MAX_DOMAINS:
        raise InvalidMessage(f"{len(names)} domains: 1 to {MAX_DOMAINS} are searched at a time")
    return names


def requests_of(question: SearchRequest) -> tuple[SearchRequest, ...]:
    """Return what each domain of a checked question is asked, in the order of its domains.

    A domain that is asked alone is asked for the page itself; of several, each for all that may come before it, too.
    """
    offset, limit = question.offset, question.limit
    if len(question.domains) > 1:
        offset, limit = 0, min(max(question.offset + question.limit, LOOK_AHEAD), MAX_MERGED)
    return tuple(replace(question, domains=(domain,), offset=offset, limit=limit) for domain in question.domains)


def suggestion_requests(domains: Iterable[str], q: str, limit: int) -> tuple[SuggestRequest, ...]:
    """Return what each domain is asked; errors as of `checked`. No more than MAX_SUGGESTIONS are asked for."""
    parse(q)
    return tuple(
        SuggestRequest(domain=domain, q=q, limit=min(max(limit, 1), MAX_SUGGESTIONS)) for domain in named(domains)
    )


def answered(outcomes: Mapping[str, T | ApplicationError]) -> tuple[list[T], tuple[tuple[str, str], ...]]:
    """Return the answers, and the domains without one with the reason; `outcomes` are of each domain, in order.

    Raises the error of the first domain if none answered, and always for a domain or a query that is itself wrong.
    """
    errors = {domain: told for domain, told in outcomes.items() if isinstance(told, ApplicationError)}
    answers = [told for told in outcomes.values() if not isinstance(told, ApplicationError)]
    wrong = [error for error in errors.values() if isinstance(error, InvalidQuery | InvalidMessage | PackNotFound)]
    for error in (*wrong, *(() if answers else errors.values())):
        raise error
    return answers, tuple((domain, str(error)) for domain, error in errors.items())
