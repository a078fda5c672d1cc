"""The API for operators, over real HTTP: the same documents as the commands print, and only with the token."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import httpx
import pytest
from pydantic import SecretStr

from app.crawl.parse.classify import FetchResult
from app.crawl.policy import CrawlPolicy
from app.web.application import create_app
from app.web.ops.access import Access
from app.web.ops.requests import OpsState
from tasks.base import Context
from tests.integration.test_crawl_report import DOMAIN, complete, links, policy, url
from tests.packs import page, write_pack
from tests.support.command import invoked
from tests.support.scripted import ScriptedSearchClient
from tests.support.web import served

pytestmark = pytest.mark.integration

__all__ = ["policy"]

TOKEN = "correct-horse-battery"
OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
ORIGIN = "https://other.example"


PATHS = [f"/api/v1/ops/{name}" for name in ("explain", "status", "broken-links", "urls")]


def ops(process: Context, **given: str) -> OpsState:
    """Return the state of an application with these settings of operators."""
    settings = process.settings.model_copy(update={name.lower(): SecretStr(value) for name, value in given.items()})
    return OpsState(settings, Access.of(settings))


@pytest.fixture
def search_client(process: Context) -> ScriptedSearchClient:
    return ScriptedSearchClient([write_pack(process.settings.data_dir / "pack.sqlite", [page("/one", "One")])])


@pytest.fixture
def client(process: Context, search_client: ScriptedSearchClient) -> Iterator[httpx.Client]:
    """Serve the API with a token, and with any origin, which must not matter."""
    with served(create_app(search_client, origins=["*"], ops=ops(process, WEB_OPERATOR_TOKEN=TOKEN))) as client:
        yield client


def test_an_operator_reads_the_documents_of_the_commands(
    process: Context, policy: CrawlPolicy, client: httpx.Client
) -> None:
    complete(process, policy, "", "<title>Home</title>Welcome here" + links("a", "none"))
    complete(process, policy, "a", "<title>=A</title>All about amber")
    complete(process, policy, "none", FetchResult("gone", "404", status=404))
    client.headers.update(OPERATOR)
    site = {"domain": DOMAIN}
    explained = client.get("/api/v1/ops/explain", params={"url": url("none")})
    assert explained.json() == json.loads(invoked("explain", url("none"), "--json"))
    assert explained.json()["reason"] == "404"
    assert client.get("/api/v1/ops/status", params=site).json()["reasons"] == {"indexed": 2, "404": 1}
    broken = client.get("/api/v1/ops/broken-links", params=site).json()
    assert broken == json.loads(invoked("broken-links", DOMAIN, "--json", exit_code=1))
    assert [(each["url"], each["status"], each["pages"]) for each in broken] == [(url("none"), 404, [url("")])]
    for form, media_type in (("jsonl", "application/x-ndjson"), ("csv", "text/csv")):
        export = client.get("/api/v1/ops/urls", params={**site, "format": form})
        assert export.headers["content-type"].startswith(media_type)
        assert export.text.splitlines() == invoked("urls", DOMAIN, "--format", form).splitlines()
    only = client.get("/api/v1/ops/urls", params={**site, "reason": "404"}).text
    assert [json.loads(line)["url"] for line in only.splitlines()] == [url("none")]
    described = client.get("/api/v1/openapi.json").json()["components"]["schemas"]
    assert set(described["ExplainedUrl"]["properties"]) == set(explained.json())


def test_nobody_else_reads_them(
    process: Context, policy: CrawlPolicy, search_client: ScriptedSearchClient, client: httpx.Client
) -> None:
    complete(process, policy, "", "<title>Home</title>Welcome here")
    named = {"domain": DOMAIN, "url": url("")}
    credentials = (b"", f"Basic {TOKEN}".encode(), b"Bearer wrong", f"Bearer {TOKEN}\xe9".encode("latin-1"))
    wrong = [{b"Authorization": value} for value in credentials]
    for path in PATHS:
        for fields in wrong:
            answer = client.get(path, params=named, headers=fields)
            assert (answer.status_code, answer.json()["type"]) == (401, "/problems/unauthorized")
            assert answer.headers["www-authenticate"] == 'Bearer realm="operators"'
            assert DOMAIN not in answer.text
        given = {"url": url("")} if path.endswith("explain") else {"domain": DOMAIN}
        answer = client.get(path, params=given, headers={**OPERATOR, "Origin": ORIGIN})
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "no-store"
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "ratelimit" in answer.headers
    with served(create_app(search_client, ops=ops(process))) as without:
        for headers in (OPERATOR, {"Authorization": "Bearer x"}, {}):
            answer = without.get("/api/v1/ops/status", params={"domain": DOMAIN}, headers=headers)
            assert (answer.status_code, answer.json()["type"]) == (404, "/problems/not-found")


def test_attempts_to_guess_the_token_are_limited_and_it_is_not_logged(
    process: Context, search_client: ScriptedSearchClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    app = create_app(search_client, rate_limit="5/hour", ops=ops(process, WEB_OPERATOR_TOKEN=TOKEN))
    with served(app) as client:
        statuses = [
            client.get("/api/v1/ops/status", params={"domain": DOMAIN}, headers=headers).status_code
            for headers in (*[{"Authorization": "Bearer guess"}] * 3, OPERATOR, OPERATOR, OPERATOR)
        ]
    assert statuses == [401, 401, 401, 200, 200, 429]
    assert TOKEN not in caplog.text


@pytest.mark.usefixtures("policy")
def test_what_cannot_be_answered_is_a_problem(client: httpx.Client) -> None:
    wrong: list[tuple[str, dict[str, str], int, str]] = [
        ("urls", {"domain": "b.gov"}, 404, "not-found"),
        ("broken-links", {"domain": "b.gov"}, 404, "not-found"),
        ("urls", {"domain": DOMAIN, "reason": "unheard-of"}, 400, "invalid"),
        ("urls", {"domain": DOMAIN, "format": "xml"}, 400, "invalid"),
        ("status", {"domain": "no host"}, 400, "invalid"),
        ("explain", {"url": "https://"}, 400, "invalid"),
        ("explain", {}, 400, "invalid"),
    ]
    for name, given, status, kind in wrong:
        answer = client.get(f"/api/v1/ops/{name}", params=given, headers=OPERATOR)
        assert (answer.status_code, answer.json()["type"]) == (status, f"/problems/{kind}"), (name, given)
