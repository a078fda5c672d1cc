"""The API's query strings: read without FastAPI, they mean what FastAPI says of them."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any
from urllib.parse import urlencode

import httpx
import pytest
from fastapi import FastAPI, Query
from fastapi.exceptions import RequestValidationError
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import QueryParams

from app.web.models import SearchParameters

pytestmark = pytest.mark.unit

NAMES = ("domain", "q", "offset", "limit", "sort", "section", "lang", "type", "other", "Limit", "")
VALUES = ("", " ", "a", "a,b", ",", "docs.example.org", "3", " 3", "1.0", "1.5", "-1", "10000", "date", "x" * 300)

fastapis = FastAPI()


@fastapis.get("/")
def stock(parameters: Annotated[SearchParameters, Query()]) -> dict[str, Any]:
    return parameters.model_dump()


async def by_fastapi(query: str) -> Any:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(fastapis), base_url="http://fastapi") as client:
        told = (await client.get(f"/?{query}")).json()
    return [(fault["loc"][1:], fault["msg"]) for fault in told["detail"]] if "detail" in told else told


def by_us(query: str) -> Any:
    try:
        return SearchParameters.read(QueryParams(query)).model_dump()
    except RequestValidationError as error:
        return [(list(fault["loc"]), fault["msg"]) for fault in error.errors()]


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=6), st.booleans())
def test_a_query_string_is_read_as_fastapi_reads_it(pairs: list[tuple[str, str]], complete: bool) -> None:
    query = urlencode([*([("domain", "a.example"), ("q", "words")] if complete else []), *pairs])
    assert by_us(query) == asyncio.run(by_fastapi(query))
