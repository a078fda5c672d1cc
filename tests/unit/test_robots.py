"""robots.txt and X-Robots-Tag."""

from __future__ import annotations

import pytest

from app.crawl.politeness import (
    MAX_BYTES,
    RobotsRules,
    fetch_robots,
    product_token,
    robots_directives,
    robots_url,
)
from app.errors import ConnectionFailed, FetchError, ForbiddenAddress, InvalidUrl, RobotsUnavailable
from app.http.response import Response

pytestmark = pytest.mark.unit

AGENT = "Perennial/0.1 (+https://example.org/)"


def parse(text: str) -> RobotsRules:
    return RobotsRules.parse(text, user_agent=AGENT)


class Answers:
    """Returns scripted responses, and records the requested URLs."""

    def __init__(self, answers: dict[str, Response | FetchError]) -> None:
        self.answers = answers
        self.requested: list[str] = []

    def get(self, url: str) -> Response:
        self.requested.append(url)
        answer = self.answers.get(url, Response(url, 404, {}, b"not here"))
        if isinstance(answer, FetchError):
            raise answer
        return answer


def at(path: str, status: int = 200, body: bytes = b"", **headers: str) -> dict[str, Response | FetchError]:
    url = "https://x.gov" + path
    return {url: Response(url, status, headers, body)}


def test_the_rules_of_the_robots_own_group_count() -> None:
    text = (
        "\ufeffUser-Agent: *\nDisallow: /\n\n"
        "User-agent: PERENNIAL\nDisallow: /private\nAllow: /private/open\nCrawl-delay: 2"
    )
    mine = RobotsRules.parse(text, user_agent=AGENT)
    assert [mine.allows(f"https://x.gov{path}") for path in ("/", "/private/a", "/private/open/a")] == [
        True,
        False,
        True,
    ]
    assert mine.crawl_delay == 2
    others = RobotsRules.parse(text, user_agent="Otherbot/1")
    assert not others.allows("https://x.gov/")
    assert others.crawl_delay is None


def test_wildcards_queries_and_escapes_are_matched() -> None:
    found = parse("User-agent: *\nDisallow: /*?s=\nDisallow: /*.cgi$\nDisallow: /ä\nSitemap: https://x.gov/s.xml")
    denied = ["/a?s=1", "/b.cgi", "/%C3%A4/x"]
    allowed = ["/a?t=1", "/b.cgi?x", "/robots.txt", "/"]
    assert [found.allows("https://x.gov" + path) for path in denied + allowed] == [False] * 3 + [True] * 4
    assert parse("").allows("https://x.gov/a")
    assert parse("<html>not found</html>").allows("https://x.gov/a")


@pytest.mark.parametrize(
    ("line", "delay"),
    [("Crawl-delay: 600", 30.0), ("Crawl-delay: 0", None), ("Crawl-delay: soon", None), ("Request-rate: 1/5", 5.0)],
)
def test_a_crawl_delay_is_bounded(line: str, delay: float | None) -> None:
    assert RobotsRules.parse(f"User-agent: *\n{line}", user_agent=AGENT, crawl_delay_max=30).crawl_delay == delay


def test_the_product_token_is_the_name_before_the_version() -> None:
    assert product_token(AGENT) == "Perennial"
    assert product_token("7bot") == "7bot"


def test_robots_txt_is_at_the_root_of_the_origin() -> None:
    assert robots_url("https://x.gov:8443/a/b?c#d") == "https://x.gov:8443/robots.txt"
    with pytest.raises(InvalidUrl):
        robots_url("/a")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
def test_a_client_error_allows_everything(status: int) -> None:
    assert fetch_robots("https://x.gov/a", Answers(at("/robots.txt", status, b"User-agent: *\nDisallow: /"))) == ""


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_error_forbids_until_it_ends(status: int) -> None:
    with pytest.raises(RobotsUnavailable, match=str(status)):
        fetch_robots("https://x.gov/a", Answers(at("/robots.txt", status)))


def test_a_failed_request_forbids_and_a_private_host_is_an_error_of_its_own() -> None:
    with pytest.raises(RobotsUnavailable, match="refused"):
        fetch_robots("https://x.gov/a", Answers({"https://x.gov/robots.txt": ConnectionFailed("refused")}))
    with pytest.raises(ForbiddenAddress):
        fetch_robots("https://x.gov/a", Answers({"https://x.gov/robots.txt": ForbiddenAddress("private")}))


def test_five_redirects_are_followed_and_no_more() -> None:
    chain: dict[str, Response | FetchError] = at("/robots.txt", 301, location="/1")
    for hop in range(1, 5):
        chain |= at(f"/{hop}", 302, location=f"/{hop + 1}")
    fetcher = Answers(chain | at("/5", 200, b"User-agent: *\nDisallow: /"))
    assert fetch_robots("https://x.gov/", fetcher).endswith("Disallow: /")
    fetcher = Answers(chain | at("/5", 302, location="/6") | at("/6", 200, b"User-agent: *\nDisallow: /"))
    assert fetch_robots("https://x.gov/", fetcher) == ""
    assert len(fetcher.requested) == 6


@pytest.mark.parametrize("location", ["file:///etc/passwd", "http://[bad", "http://me:pw@x.gov/"])
def test_a_redirect_to_an_invalid_or_private_address_is_no_robots_txt(location: str) -> None:
    assert fetch_robots("https://x.gov/", Answers(at("/robots.txt", 301, location=location))) == ""
    private = {"http://10.0.0.1/": ForbiddenAddress("private")}
    assert fetch_robots("https://x.gov/", Answers(at("/robots.txt", 301, location="http://10.0.0.1/") | private)) == ""


def test_a_long_file_is_cut_at_a_line() -> None:
    body = b"\xef\xbb\xbfUser-agent: *\n" + b"Disallow: /abcdefgh\n" * 30_000
    text = fetch_robots("https://x.gov/", Answers(at("/robots.txt", 200, body)))
    assert text.startswith("User-agent")
    assert text.endswith("Disallow: /abcdefgh\n")
    assert MAX_BYTES - 100 < len(text) <= MAX_BYTES


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], set()),
        (["NoIndex, nofollow"], {"noindex", "nofollow"}),
        (["otherbot: noindex, nofollow"], set()),
        (["otherbot: noindex", "noarchive"], {"noarchive"}),
        (["PERENNIAL: none"], {"none"}),
        (["otherbot: noindex, perennial: nofollow"], {"nofollow"}),
        (["*: noindex"], {"noindex"}),
        (["unavailable_after: 25 Jun 2030 15:00:00 PST, noindex"], {"unavailable_after", "noindex"}),
        (["max-snippet:10, nofollow"], {"max-snippet", "nofollow"}),
    ],
)
def test_an_x_robots_tag_may_address_one_robot(values: list[str], expected: set[str]) -> None:
    assert robots_directives(values, "Perennial") == expected
