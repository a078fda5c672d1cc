"""Pages that are suggested while a person types: the best hits for the words so far, with their headings."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Annotated

from pydantic import Field

from app.broker.errors import ApplicationError
from app.cluster.client.contract import SearchClient
from app.search.contract import Hit, SearchRequest
from app.web.shown_urls import is_followable

#: Pages that are suggested at most.
MAX_PAGES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestedPage:
    """A page, or a section of it, that the words lead to."""

    url: Annotated[str, Field(description="With the fragment of the heading, if there is one.")]
    title: Annotated[str, Field(description="Plain text, not escaped.")]
    heading: Annotated[str, Field(description="The heading at which the page opens, or empty.")]
    domain: str


def suggested_pages(
    client: SearchClient, domains: Sequence[str], text: str, *, most: int, languages: Sequence[str] = ()
) -> tuple[SuggestedPage, ...]:
    """Return the best pages with all words of the text, each once, in the visitor's languages; none without a reply."""
    if most < 1 or not domains:
        return ()
    with suppress(ApplicationError):
        result = client.search(
            SearchRequest(domains=tuple(domains), q=text, limit=2 * most, languages=tuple(languages))
        )
        hits: dict[str, Hit] = {}
        for hit in () if result.relaxed else result.hits:
            if is_followable(hit.url):
                hits.setdefault(hit.url, hit)
        return tuple(
            SuggestedPage(
                url=hit.link,
                title=hit.title or hit.path,
                heading=hit.opens_at.heading if hit.opens_at else "",
                domain=hit.domain,
            )
            for hit in islice(hits.values(), most)
        )
    return ()
