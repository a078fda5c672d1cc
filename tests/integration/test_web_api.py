"""The API of the web and what browsers ask for, over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree as ET

import httpx
import pytest

from app.broker.errors import ApplicationError, BrokerUnreachable, Overloaded, PublishFailed, RequestTimedOut
from app.errors import NotPlaced, PackCorrupt, SearchTimeout, SearchUnavailable
from app.storage.page_parts import Block
from app.web import problems
from app.web.application import create_app
from app.web.paths import OPS_API
from tests.packs import BUILT_AT, page, write_pack
from tests.support.scripted import ScriptedSearchClient
from tests.support.web import served

pytestmark = pytest.mark.integration

LONG = "a-site-with-quite-a-long-name.example"
PAGES = [
    *(page(f"/many/{number}", f"Many {number}", "One of many pages", lang="en") for number in range(35)),
    page("/évil?a=1&b=2", "<script>alert(1)</script>", "<b>hostile</b> & 'quoted' \"body\"", lang="de"),
]
SEARCH, SUGGEST = "/api/v1/search", "/api/v1/suggest"
OPENSEARCH = "{http://a9.com/-/spec/opensearch/1.1/}"


@pytest.fixture(scope="module")
def search_client(tmp_path_factory: pytest.TempPathFactory) -> ScriptedSearchClient:
    folder = tmp_path_factory.mktemp("packs")
    other = [page("/elsewhere", "Elsewhere", "One more of many pages")]
    return ScriptedSearchClient(
        [write_pack(folder / "1.sqlite", PAGES), write_pack(folder / "2.sqlite", other, domain=LONG)]
    )


@pytest.fixture(scope="module")
def client(search_client: ScriptedSearchClient) -> Iterator[httpx.Client]:
    with served(create_app(search_client, rate_limit="1000/second")) as client:
        yield client


@pytest.fixture
def scripted(search_client: ScriptedSearchClient) -> Iterator[ScriptedSearchClient]:
    """Yield the search client, which searches without faults again after the test."""
    yield search_client
    search_client.behave()


def test_hits_are_plain_text_with_ranges_to_mark(client: httpx.Client) -> None:
    found = client.get(SEARCH, params={"domain": "site.example", "q": "hostile"}).json()
    (hit,) = found["hits"]
    assert hit["title"] == "<script>alert(1)</script>"
    assert hit["snippet"] == "<b>hostile</b> & 'quoted' \"body\""
    assert [hit["snippet"][start:end] for start, end in hit["marks"]] == ["hostile"]
    assert (hit["domain"], hit["lang"], hit["url"]) == ("site.example", "de", "https://site.example/évil?a=1&b=2")
    assert (found["total"], found["next"], found["next_offset"], found["silent"]) == (1, None, None, [])
    assert found["sources"] == [
        {"domain": "site.example", "name": "site.example", "built_at": BUILT_AT, "pages": len(PAGES)}
    ]


def test_without_a_domain_all_sites_are_searched_and_counted_by_site(client: httpx.Client) -> None:
    found = client.get(SEARCH, params={"q": "many"}).json()
    assert found["total"] == 36
    (facet,) = [each for each in found["facets"] if each["name"] == "domain"]
    assert facet["values"] == [{"value": "site.example", "pages": 35}, {"value": LONG, "pages": 1}]
    assert client.get(SUGGEST, params={"q": "elsew"}).json()["suggestions"] == ["elsewhere"]


def test_of_identical_pages_one_in_the_visitor_s_language_is_found_and_suggested(tmp_path: Path) -> None:
    pages = [page(f"/{lang}/a", "Amber guide", "Amber text", lang=lang) for lang in ("en", "de-AT", "fr")]
    german = {"Accept-Language": "it;q=0.9, de-CH, de;q=0.8, en;q=0.5"}
    with served(create_app(ScriptedSearchClient([write_pack(tmp_path / "pack.sqlite", pages)]))) as client:
        for headers, path in (({}, "/en/a"), (german, "/de-AT/a"), ({"Accept-Language": "xx, ;q=, fr;q=9"}, "/en/a")):
            answer = client.get(SEARCH, params={"q": "amber"}, headers=headers)
            assert [hit["path"] for hit in answer.json()["hits"]] == [path]
            assert "Accept-Language" in answer.headers["vary"]
            suggested = client.get(SUGGEST, params={"q": "amb", "pages": 1}, headers=headers).json()
            assert [each["url"] for each in suggested["pages"]] == [f"https://site.example{path}"]


def test_a_hit_has_its_headings_and_the_addresses_of_its_copies(tmp_path: Path) -> None:
    blocks = (Block(("Title",), "h1", "top"), Block(("Amber trees",), "h2", "trees"))
    pages = [
        page("/a", "Title", "Amber text", headings="Title\nAmber trees", blocks=blocks),
        page("/copy/a", "Title", "Amber text", headings="Title\nAmber trees", blocks=blocks),
    ]
    with served(create_app(ScriptedSearchClient([write_pack(tmp_path / "pack.sqlite", pages)]))) as client:
        (hit,) = client.get(SEARCH, params={"q": "amber"}).json()["hits"]
    assert hit["opens_at"] == {"heading": "Amber trees", "url": "https://site.example/a#trees"}
    assert (hit["subsections"], hit["copies"], hit["copy_urls"]) == ([], 1, ["https://site.example/copy/a"])


def test_only_the_chosen_origins_may_read_the_api(tmp_path: Path) -> None:
    search_client = ScriptedSearchClient([write_pack(tmp_path / "pack.sqlite", PAGES)])
    mine, other = {"Origin": "https://mine.example"}, {"Origin": "https://other.example"}
    path = f"{SEARCH}?q=many"
    with served(create_app(search_client, origins=("https://mine.example",))) as client:
        allowed, refused = client.get(path, headers=mine), client.get(path, headers=other)
        assert allowed.headers["access-control-allow-origin"] == "https://mine.example"
        assert "access-control-allow-origin" not in refused.headers
        for answer in (allowed, refused, client.get(path)):
            assert "Origin" in answer.headers["vary"]
            assert answer.headers["cross-origin-resource-policy"] == "cross-origin"
        invalid = client.get(SEARCH, headers=mine)
        assert (invalid.status_code, invalid.headers["access-control-allow-origin"]) == (400, "https://mine.example")
        for private in ("/?q=many", "/metrics", "/static/style.css"):
            answer = client.get(private, headers=mine)
            assert "access-control-allow-origin" not in answer.headers
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    with served(create_app(search_client, origins=("*",))) as client:
        assert client.get(path, headers=other).headers["access-control-allow-origin"] == "*"
        for private in ("/?q=many", f"{OPS_API}/letters"):
            assert "access-control-allow-origin" not in client.get(private, headers=other).headers


def test_each_page_of_hits_links_to_the_next(client: httpx.Client) -> None:
    parameters = {"domain": ["https://Site.Example/", LONG], "q": "many & pages", "limit": "20", "lang": "en"}
    first = client.get(SEARCH, params=parameters | {"sort": "date"}).json()
    assert (len(first["hits"]), first["total"], first["next_offset"]) == (20, 35, 20)
    assert parse_qs(urlsplit(first["next"]).query)["sort"] == ["date"]
    last = client.get(first["next"]).json()
    assert (len(last["hits"]), last["next"], last["query"]) == (15, None, "many & pages")
    paths = [hit["path"] for answer in (first, last) for hit in answer["hits"]]
    assert len(set(paths)) == 35


def test_a_silent_domain_is_reported_beside_the_hits_of_others(
    client: httpx.Client, scripted: ScriptedSearchClient
) -> None:
    scripted.change = lambda found: replace(
        found, silent=((LONG, "no searcher answered in 3 s"),), did_you_mean="money"
    )
    found = client.get(SEARCH, params={"domain": "site.example", "q": "many"}).json()
    assert found["silent"] == [{"domain": LONG, "reason": "no searcher answered in 3 s"}]
    assert found["did_you_mean"] == "money"


def test_a_query_without_hits_is_corrected_unless_it_is_exact(client: httpx.Client) -> None:
    found = client.get(SEARCH, params={"domain": "site.example", "q": "mayn"}).json()
    assert (found["query"], found["corrected"], found["did_you_mean"], found["total"]) == ("mayn", "many", None, 35)
    assert client.get(found["next"]).json()["corrected"] == "many"
    exact = client.get(SEARCH, params={"domain": "site.example", "q": "mayn", "exact": True}).json()
    assert (exact["corrected"], exact["did_you_mean"], exact["total"]) == (None, "many", 0)


def test_all_indexed_sites_are_listed(client: httpx.Client) -> None:
    domains = client.get("/api/v1/domains").json()["domains"]
    assert domains == [
        {"domain": LONG, "name": LONG, "pages": 1, "built_at": BUILT_AT, "available": True},
        {
            "domain": "site.example",
            "name": "site.example",
            "pages": len(PAGES),
            "built_at": BUILT_AT,
            "available": True,
        },
    ]


@pytest.mark.parametrize(
    ("params", "status", "detail"),
    [
        ({"lang": "de"}, 400, "q: Field required"),
        ({"domain": ",", "q": "x"}, 400, "domain: Value error, expected 1 to 16 domains, not 0"),
        ({"domain": ",".join(f"{n}.example" for n in range(17)), "q": "x"}, 400, "not 17"),
        ({"domain": "site.example"}, 400, "q: Field required"),
        ({"domain": "site.example", "q": "?!"}, 400, "there is no letter or digit"),
        ({"domain": "site.example", "q": "x" * 256}, 400, "q: String should have at most 255 characters"),
        ({"domain": "site.example", "q": "x", "limit": "51"}, 400, "limit: Input should be less than or equal to 50"),
        ({"domain": "site.example", "q": "x", "offset": "-1"}, 400, "offset: Input should be greater than"),
        ({"domain": "site.example", "q": "x", "sort": "size"}, 400, "sort: Input should be 'relevance' or 'date'"),
        ({"domain": "site.example", "q": "x", "limits": "5"}, 400, "limits: Extra inputs are not permitted"),
        ({"domain": "a b", "q": "x"}, 400, "URL 'https://a b'"),
        ({"domain": "never.example", "q": "x"}, 404, "never.example has no pack"),
    ],
)
def test_invalid_requests_are_answered_with_the_reason(
    client: httpx.Client, params: dict[str, str], status: int, detail: str
) -> None:
    answer = client.get(SEARCH, params=params)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status
    assert answer.json()["type"] == ("/problems/invalid" if status == 400 else "/problems/never-indexed")
    assert detail in answer.json()["detail"]


@pytest.mark.parametrize(
    ("error", "status", "name"),
    [
        (NotPlaced("site.example is on no searcher"), 503, "not-placed"),
        (Overloaded("too many"), 503, "busy"),
        (SearchUnavailable("nobody knows"), 503, "unavailable"),
        (BrokerUnreachable("no broker"), 503, "unavailable"),
        (PackCorrupt("broken"), 503, "broken"),
        (SearchTimeout("1 s"), 504, "timeout"),
        (RequestTimedOut("3 s"), 504, "timeout"),
        (ApplicationError("what is this?"), 500, "internal"),
    ],
)
def test_each_search_error_has_its_problem_type_and_status(
    client: httpx.Client, scripted: ScriptedSearchClient, error: ApplicationError, status: int, name: str
) -> None:
    scripted.fault = error
    answer = client.get(SEARCH, params={"domain": "site.example", "q": "many"})
    assert (answer.status_code, answer.json()["type"]) == (status, f"/problems/{name}")
    assert ("retry-after" in answer.headers) == (name != "internal")
    assert client.get(answer.json()["type"]).text.startswith(f"{name}: {answer.json()['title']}")


@pytest.mark.parametrize("path", [SEARCH, "/"])
@pytest.mark.parametrize("kind", [SearchUnavailable, BrokerUnreachable, PackCorrupt, PublishFailed])
def test_an_outage_is_explained_in_the_log_only(
    client: httpx.Client,
    scripted: ScriptedSearchClient,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[ApplicationError],
    path: str,
) -> None:
    monkeypatch.setattr(problems, "_logged_at", {})
    scripted.fault = kind("amqp://10.0.0.7:5672: connection refused")
    answers = [client.get(path, params={"domain": "site.example", "q": "many"}) for _ in range(3)]
    assert all(answer.status_code >= 500 and "10.0.0.7" not in answer.text for answer in answers)
    (line,) = [record.getMessage() for record in caplog.records if "10.0.0.7" in record.getMessage()]
    assert line.startswith(f"Searches fail ({kind.reason})")


def test_an_unexpected_error_is_answered_with_a_500_problem_that_only_the_log_explains(
    client: httpx.Client, scripted: ScriptedSearchClient, caplog: pytest.LogCaptureFixture
) -> None:
    scripted.fault = ZeroDivisionError("secret detail")
    answer = client.get(SEARCH, params={"domain": "site.example", "q": "many"})
    page = client.get("/", params={"domain": "site.example", "q": "many"})
    assert (answer.status_code, page.status_code) == (500, 500)
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.json()["type"], answer.json()["status"]) == ("/problems/internal", 500)
    assert page.headers["content-type"].startswith("text/html")
    assert "secret" not in answer.text + page.text
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError] * 2
    scripted.behave()
    assert client.get(SEARCH, params={"domain": "site.example", "q": "many"}).status_code == 200


def test_unknown_addresses_of_the_api_are_problems(client: httpx.Client) -> None:
    assert client.get("/api/v2/search").json()["type"] == "/problems/not-found"
    assert client.get("/problems/none").status_code == 404
    assert client.post(SEARCH).json()["type"] == "/problems/not-allowed"


def test_browsers_get_an_opensearch_description_of_all_sites_or_one(client: httpx.Client) -> None:
    answer = client.get("/opensearch.xml")
    assert answer.headers["content-type"] == "application/opensearchdescription+xml"
    everything, one = ET.fromstring(answer.content), described(client, domain=LONG)
    for root in (everything, one):
        assert root.tag == f"{OPENSEARCH}OpenSearchDescription"
        assert 1 <= len(text(root, "ShortName")) <= 16
        assert 1 <= len(text(root, "LongName")) <= 48
        assert 1 <= len(text(root, "Description")) <= 1_024
        urls = {url.attrib["type"]: url.attrib for url in root.findall(f"{OPENSEARCH}Url")}
        assert set(urls) == {
            "text/html",
            "application/x-suggestions+json",
            "application/opensearchdescription+xml",
        }
        assert all(url["template"].startswith(str(client.base_url)) for url in urls.values())
        assert "{searchTerms}" in urls["text/html"]["template"]
        found = client.get(urls["text/html"]["template"].replace("{searchTerms}", "elsewhere"))
        assert (found.status_code, "Elsewhere" in found.text) == (200, True)
    assert text(everything, "ShortName") == "Perennial"
    assert text(one, "ShortName") == "a-site-with-qui…"


def described(client: httpx.Client, **params: str) -> ET.Element:
    answer = client.get("/opensearch.xml", params=params)
    assert answer.status_code == 200
    return ET.fromstring(answer.content)


def text(root: ET.Element, name: str) -> str:
    (element,) = root.findall(f"{OPENSEARCH}{name}")
    assert element.text
    return element.text


def test_unknown_sites_and_invalid_hosts_have_no_description(client: httpx.Client) -> None:
    assert client.get("/opensearch.xml?domain=never.example").json()["type"] == "/problems/never-indexed"
    assert client.get("/opensearch.xml?domain=a%20b").status_code == 400
    for host in ('"><script>', "a/b", "user@a", "{searchTerms}", "a b"):
        assert client.get("/opensearch.xml", headers={"Host": host}).status_code == 400, host
    for host in ("[::1]:8000", "search.example", "localhost:80"):
        assert f"http://{host}/?q=" in client.get("/opensearch.xml", headers={"Host": host}).text
    secure = client.get("/opensearch.xml", headers={"Host": "search.example", "X-Forwarded-Proto": "https"})
    assert "https://search.example/?q=" in secure.text


def test_suggestions_start_with_the_typed_text(client: httpx.Client) -> None:
    answer = client.get("/suggest", params={"domain": "site.example", "q": "hosti"})
    assert answer.headers["content-type"] == "application/x-suggestions+json"
    assert answer.json() == ["hosti", ["hostile"]]
    for nothing in ("", "?!", "x" * 300):
        assert client.get("/suggest", params={"q": nothing}).json() == [nothing, []]


def test_pages_with_all_words_are_suggested_if_they_are_asked_for(client: httpx.Client) -> None:
    found = {"url": "https://site.example/évil?a=1&b=2", "title": "<script>alert(1)</script>", "heading": ""}
    expected = [found | {"domain": "site.example"}]
    programs = client.get(SUGGEST, params={"q": "hosti", "pages": 3}).json()
    assert programs == {"query": "hosti", "suggestions": ["hostile"], "pages": expected}
    page_script = client.get("/suggest", params={"q": "hosti", "pages": 1}).json()
    assert page_script == ["hosti", ["hostile"], [], [], expected]
    for nothing in ("", "?!", "nonexistent hostile"):
        assert client.get("/suggest", params={"q": nothing, "pages": 1}).json()[4] == []
