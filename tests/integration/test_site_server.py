"""The test server: routes, recorded requests, and closing while clients are connected."""

from __future__ import annotations

import pytest
import requests

from tests.servers import hazards
from tests.servers.site import Site, fail_times, page, redirect, with_etag

pytestmark = pytest.mark.integration


def test_routes_answer_and_requests_are_recorded() -> None:
    with (
        Site({"/": page("Home", "Welcome", links=["/a?b=1"]), "/a": redirect("/")}) as site,
        requests.Session() as client,
    ):
        home = client.get(site.url, headers={"X-Mark": "1"})
        assert (home.status_code, "Welcome" in home.text, '"/a?b=1"' in home.text) == (200, True, True)
        assert client.get(site.at("/a?b=1"), allow_redirects=False).headers["Location"] == "/"
        site.remove("/a")
        assert client.get(site.at("/a")).status_code == 404
        assert site.paths() == ["/", "/a?b=1", "/a"]
        assert site.requests[0].headers["x-mark"] == "1"
        assert site.hits("/a") == 1


def test_a_route_fails_a_number_of_times_and_then_answers() -> None:
    with Site({"/": fail_times(2, 503, page("Home"), retry_after="1")}) as site, requests.Session() as client:
        assert [client.get(site.url).status_code for _ in range(4)] == [503, 503, 200, 200]


def test_an_etag_that_matches_is_answered_with_304() -> None:
    with Site({"/": with_etag('"v1"', page("Home", headers={"ETag": '"v1"'}))}) as site, requests.Session() as client:
        etag = client.get(site.url).headers["ETag"]
        assert client.get(site.url, headers={"If-None-Match": etag}).status_code == 304


def test_closing_does_not_wait_for_a_drip() -> None:
    with Site({"/": hazards.drip(seconds=60)}) as site, requests.Session() as client:
        answer = client.get(site.url, stream=True, timeout=5)
        assert answer.status_code == 200
    answer.close()
