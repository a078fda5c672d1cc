"""`perennial index` and `perennial status`, called in this process."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.broker.errors import BrokerUnreachable
from app.cli import crawl as command
from app.crawl.frontier.frontier import Frontier
from app.crawl.frontier.values import Crawl, FrontierUrl, crawl_key
from app.operations.context import OperatorContext
from app.redis_state.client import get_redis
from app.redis_state.lease import lease
from app.storage.open import store_of
from app.timers.timers import Timers, full_pack_callback
from config.settings import Settings, get_settings
from tests.packs import page as pack_page
from tests.packs import publish, write_pack
from tests.servers.site import Site, page
from tests.support.command import as_process_with, invoked
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration


@pytest.fixture
def posted(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Run commands with the settings of the test, and record messages instead of publishing them."""
    messages: list[dict[str, Any]] = []
    monkeypatch.setattr(
        OperatorContext, "post", lambda _self, kind, **payload: messages.append({"type": kind, **payload})
    )
    with as_process_with(environment):
        yield messages


@pytest.mark.parametrize("accepts", [True, False])
def test_index_without_a_broker_that_answers_is_an_error_and_nothing_is_posted(tmp_path: Path, accepts: bool) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if accepts:
            server.listen()
        url = f"amqp://guest:guest@127.0.0.1:{server.getsockname()[1]}//"
        given = {"PERENNIAL_DATA_DIR": str(tmp_path), "BROKER_URL": url}
        refused = pytest.raises(BrokerUnreachable, match="refused" if not accepts else "no answer in time")
        with as_process_with(given), refused:
            invoked("index", "https://site.example/")


def test_index_tries_the_scheme_that_answers_and_names_it(posted: list[dict[str, Any]]) -> None:
    with Site({"/a": page("A")}) as site:
        assert invoked("index", f"{site.domain}/a") == f"index of {site.at('/a')} posted (http answers)\n"
        assert invoked("index", site.url) == f"index of {site.url} posted\n"
    assert [message["url"] for message in posted] == [site.at("/a"), site.url]


def test_index_that_waits_prints_one_json_document(
    posted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_watch", lambda *_, **__: None)
    printed = invoked("index", "https://a.gov/", "--crawl", "--wait", "--json")
    assert json.loads(printed)["domain"] == "a.gov"
    assert [message["type"] for message in posted] == ["index+crawl"]


def test_the_status_of_a_crawl_says_how_long_its_pages_take_by_the_delay_of_its_host(
    posted: list[dict[str, Any]], settings: Settings
) -> None:
    printed = invoked("index", "https://a.gov/", "--crawl")
    assert printed.endswith("posted\n`perennial status --watch a.gov` shows how far it is\n")
    frontier = Frontier(get_redis(settings.redis))
    crawl = Crawl("c", "a.gov", "https://a.gov/", datetime.now(UTC), recorded=True)
    frontier.begin(crawl)
    frontier.rebuild("c", (), [FrontierUrl(f"https://a.gov/{n}", f"https://a.gov/{n}", 1) for n in range(700)])
    get_redis(settings.redis).hset(crawl_key("c"), "delay", "1")
    with as_process_with({"HOST_DELAY": "2"}):
        text, document = invoked("status", "a.gov"), invoked("status", "a.gov", "--json")
    assert "700 pages seen, 700 pages wait, 0 messages open, 0 dead; at least 0:11:40 left;" in text
    assert json.loads(document)["seconds_left"] == 700
    assert len(posted) == 1


def test_status_says_that_the_timer_waits_for_an_earlier_crawl_that_is_paused(
    posted: list[dict[str, Any]], redis_url: str
) -> None:
    frontier = Frontier(get_redis(redis_url))
    for crawl_id in ("earlier", "latest"):
        frontier.begin(Crawl(crawl_id, "a.gov", "https://a.gov/", datetime.now(UTC), recorded=True))
    frontier.rebuild("earlier", (), [FrontierUrl(f"https://a.gov/{n}", f"https://a.gov/{n}", 1) for n in range(7)])
    frontier.set_state("earlier", "paused")
    Timers(get_redis(redis_url)).start("a.gov", timeout=60, callback=full_pack_callback("a.gov"))
    assert frontier.crawled(["a.gov"])
    assert " s, but not before the 7 pages of another crawl, which may be paused; " in invoked("status", "a.gov")
    assert posted == []


def test_index_assumes_https_where_no_scheme_answers(posted: list[dict[str, Any]]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{unused.getsockname()[1]}"
        assert "neither https nor http answers; https is assumed" in invoked("index", host)
    assert posted == [{"type": "index", "url": f"https://{host}/", "domain": host}]


def test_index_without_a_scheme_says_that_the_address_of_the_host_is_not_allowed(
    posted: list[dict[str, Any]],
) -> None:
    with Site() as site, as_process_with({"ALLOW_PRIVATE_HOSTS": ""}):
        printed = invoked("index", site.domain)
    expected = f"{site.domain} has the address 127.0.0.1, which is not public; ALLOW_PRIVATE_HOSTS can allow it"
    assert f"posted ({expected}; https is assumed)" in printed
    assert [message["url"] for message in posted] == [f"https://{site.domain}/"]


def test_status_says_that_a_domain_has_no_crawl_no_timer_and_no_pack(
    posted: list[dict[str, Any]], redis_url: str
) -> None:
    unknown = CliRunner().invoke(command.cli, ["status", "b.gov"])
    assert (unknown.exit_code, unknown.stdout) == (
        0,
        "b.gov: 0 pages seen, 0 messages open, 0 dead; no timer; no pack\n",
    )
    assert unknown.stderr == (
        "perennial: there is no crawl, timer or pack of b.gov; `perennial dead list --domain b.gov` lists what failed\n"
    )
    Timers(get_redis(redis_url)).start("b.gov", timeout=60, callback=full_pack_callback("b.gov"))
    assert CliRunner().invoke(command.cli, ["status", "b.gov"]).stderr == ""
    assert posted == []


def test_status_says_that_a_pack_is_being_built(posted: list[dict[str, Any]], redis_url: str) -> None:
    with lease(get_redis(redis_url), "pack:b.gov"):
        assert "; no timer; no pack, one is being built" in invoked("status", "b.gov")
        assert json.loads(invoked("status", "b.gov", "--json"))["packing"]
    assert "being built" not in invoked("status", "b.gov")
    assert posted == []


def test_status_says_when_the_pack_was_built(posted: list[dict[str, Any]], tmp_path: Path) -> None:
    pack = write_pack(tmp_path / "p.sqlite", [pack_page("/one")], domain="b.gov")
    publish(store_of(get_settings()), pack, domain="b.gov")
    built = json.loads(invoked("status", "b.gov", "--json"))["pack"]["built_at"]
    assert invoked("status", "b.gov").endswith(f"; no timer; pack 1 with 1 pages, built {built}\n")
    assert posted == []


def test_status_of_an_overdue_timer_shows_no_negative_seconds(posted: list[dict[str, Any]], redis_url: str) -> None:
    timers = Timers(get_redis(redis_url))
    timers.start("a.gov", timeout=0.01, callback=full_pack_callback("a.gov"))
    eventually(lambda: (timer := timers.running("a.gov")) and timer.remaining < 0, "the timer is overdue")
    assert "pack_full in 0 s" in invoked("status", "a.gov")
    assert json.loads(invoked("status", "a.gov", "--json"))["timer"] == 0
    assert posted == []
