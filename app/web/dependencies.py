"""What the routes take: the application's search client and the API's query parameters."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict, Field, field_validator

from app.cluster.client.contract import MAX_DOMAINS, SearchClient
from app.search.contract import MAX_HITS, MAX_SUGGESTIONS, Filters, SearchRequest, Sort
from app.search.query import MAX_CHARACTERS

#: Hits of one API answer, at most. A searcher returns up to `app.search.contract.MAX_LIMIT`.
MAX_API_LIMIT = 50
#: Characters of a host name (RFC 1035 section 2.3.4) and a port.
_MAX_DOMAIN = 261


async def _search_client(request: Request) -> SearchClient:
    """Return the application's search client. FastAPI runs a dependency that is not asynchronous in a thread."""
    client: SearchClient = request.app.state.search_client
    return client


Client = Annotated[SearchClient, Depends(_search_client)]


class Parameters(BaseModel):
    """Query parameters of searches and suggestions. An unknown parameter is refused: it may be a mistyped filter."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    domain: list[Annotated[str, Field(min_length=1, max_length=_MAX_DOMAIN)]] = Field(
        min_length=1,
        max_length=MAX_DOMAINS,
        description="The sites, as they were indexed. Several: repeat the parameter, or put commas between.",
        examples=[["docs.example.org"]],
    )
    q: str = Field(
        min_length=1,
        max_length=MAX_CHARACTERS,
        description='Words, "phrases", -exclusions; the last word may be the beginning of one.',
        examples=['"event loop" -uvloop'],
    )

    @field_validator("domain", mode="after")
    @classmethod
    def _split_at_commas(cls, given: list[str]) -> list[str]:
        names = dict.fromkeys(name for each in given for part in each.split(",") if (name := part.strip()))
        if not 1 <= len(names) <= MAX_DOMAINS:
            raise ValueError(f"expected 1 to {MAX_DOMAINS} domains, not {len(names)}")
        return list(names)


class SearchParameters(Parameters):
    """Query parameters of a search."""

    offset: int = Field(0, ge=0, lt=MAX_HITS, description="Hits to leave out at the beginning.", examples=[10])
    limit: int = Field(10, ge=1, le=MAX_API_LIMIT, description="Hits to answer with, at most.", examples=[10])
    sort: Sort = Field("relevance", description="Best first, or newest first.")
    section: str = Field("", max_length=200, description="Only pages below this first part of the path.")
    lang: str = Field("", max_length=35, description="Only pages in this language, as the pages name it.")
    type: str = Field("", max_length=127, description="Only pages of this content type.")

    def request(self) -> SearchRequest:
        """Return the search request that the parameters describe."""
        return SearchRequest(
            domains=tuple(self.domain),
            q=self.q,
            offset=self.offset,
            limit=self.limit,
            sort=self.sort,
            filters=Filters(section=self.section, lang=self.lang, type=self.type),
        )


class SuggestParameters(Parameters):
    """Query parameters of suggestions."""

    limit: int = Field(8, ge=1, le=MAX_SUGGESTIONS, description="Suggestions to answer with, at most.", examples=[8])
