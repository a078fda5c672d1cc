"""`perennial search`, `perennial searchers` and `python -m app.web` as a user runs them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest

from app.cluster.client.cluster import ClusterSearchClient
from app.private_services import Urls
from app.sites.site import Site
from app.sites.stored import add_site
from app.storage.open import open_store
from config.settings import Settings
from tests.packs import page, publish, write_pack
from tests.support import command as commands
from tests.support.corner import environment_of, own_vhost, settings_for
from tests.support.fleet import fleet, placed, ready
from tests.support.peers import orchestrator, route, routes
from tests.support.waiting import eventually
from tests.support.web import web_process

pytestmark = pytest.mark.acceptance

PAGES = [
    page("/one", "Page \x1b]0;owned\x07one [bold]", "The first word \x1b[31mred stands here", lang="en"),
    page("/two", "Page two", "The second word", lang="fr", modified="2026-11-20"),
]
OTHER = [page("/three", "Page three", "A third word", url="https://other.example/three")]
Perennial = Callable[..., subprocess.CompletedProcess[str]]


@dataclass(frozen=True)
class Running:
    """What runs, and how others may join it."""

    settings: Settings
    environment: dict[str, str]


@pytest.fixture(scope="module")
def running(services: Urls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Yield an orchestrator, a searcher, and the packs of two sites on it."""
    folder = tmp_path_factory.mktemp("search")
    with own_vhost(services) as broker_url:
        settings = settings_for(folder, broker_url, services.redis_url, services.broker_api_url)
        store = open_store(settings.store)
        publish(store, write_pack(folder / "site.sqlite", PAGES), pages=2)
        other = write_pack(folder / "other.sqlite", OTHER, domain="other.example")
        publish(store, other, domain="other.example", pages=1)
        best_bet = {"queries": ["third"], "url": "https://other.example/first", "title": "Read first"}
        settings_of_search = {"best_bets": [best_bet], "synonyms": ["tierce => third"]}
        add_site(store, Site.of("other.example", {"name": "Other Manuals"} | settings_of_search))
        environment = environment_of(settings) | {"REPLICAS": "1", "WEB_ADDRESS": "127.0.0.1:0"}
        with fleet(environment, folder) as members, closing(ClusterSearchClient.of(settings)) as finder:
            ready(members.orchestrator(), members.searcher())
            wanted = {"site.example": 1, "other.example": 1}
            eventually(lambda: placed(finder.routes(), wanted, copies=1), "the packs are placed")
            yield Running(settings, environment)


def command(environment: dict[str, str]) -> Perennial:
    return partial(commands.perennial, environment)


@pytest.fixture
def perennial(running: Running) -> Perennial:
    return command(running.environment)


def test_hits_are_printed_without_colours_to_a_pipe(perennial: Perennial) -> None:
    done = perennial("search", "Site.EXAMPLE", "word")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("1–2 of 2 in ")
    assert "Page two\nhttps://site.example/two  2026-11-20\nThe second word\n" in done.stdout
    assert "one [bold]" in done.stdout
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", done.stdout)


def test_words_with_a_minus_are_exclusions_and_json_is_one_document(perennial: Perennial) -> None:
    done = perennial("search", "site.example", "word", "-first", "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert [hit["path"] for hit in found["hits"]] == ["/two"]
    assert (found["domains"], found["query"], found["total"]) == (["site.example"], "word -first", 1)


def test_several_sites_are_searched_together_sorted_and_filtered(perennial: Perennial) -> None:
    both = perennial("search", "site.example,other.example", "word", "--sort", "date", "--json")
    assert json.loads(both.stdout)["total"] == 3
    assert json.loads(both.stdout)["hits"][0]["path"] == "/two"
    assert {hit["domain"] for hit in json.loads(both.stdout)["hits"]} == {"site.example", "other.example"}
    none = perennial("search", "other.example", "word", "--lang", "fr")
    assert none.stderr == "perennial: no page on Other Manuals with these filters matches: word\n"


def test_sites_are_printed_by_their_display_names_and_best_bets_before_the_hits(perennial: Perennial) -> None:
    both = perennial("search", "site.example,other.example", "word").stdout
    assert "Sites: site.example 2, Other Manuals 1\n" in both
    assert "\nPage three – Other Manuals\n" in both
    found = perennial("search", "other.example", "third").stdout
    assert found.startswith("Recommended by Other Manuals: Read first\nhttps://other.example/first\n\n1–1 of 1 in ")
    assert "https://other.example/three\nA third word\n" in perennial("search", "other.example", "tierce").stdout
    (best_bet,) = json.loads(perennial("search", "other.example", "third", "--json").stdout)["best_bets"]
    assert (best_bet["title"], best_bet["domain"]) == ("Read first", "other.example")


def test_exit_status_1_is_no_hits_and_2_wrong_usage(perennial: Perennial) -> None:
    nothing = perennial("search", "site.example", "nonexistent")
    assert (nothing.returncode, nothing.stdout) == (1, "")
    assert nothing.stderr == "perennial: no page on site.example matches: nonexistent\n"
    never = perennial("search", "never.example", "word")
    assert never.returncode == 1
    assert never.stderr == (
        "perennial: never.example has no pack: it was never indexed, or is not packed yet\n"
        "perennial: `perennial index --crawl URL` indexes a site, and `perennial status DOMAIN` shows how far it is\n"
    )
    invalid = perennial("search", "site.example", "?!")
    assert invalid.returncode == 2
    assert "no letter or digit" in invalid.stderr
    assert perennial("search", "site.example").returncode == 2
    siteless = perennial("search", "words of a page")
    assert siteless.returncode == 2
    assert "The first argument names the site: perennial search DOMAIN WORDS..." in siteless.stderr


def test_without_an_orchestrator_the_command_names_a_remedy(settings: Settings) -> None:
    alone = command(environment_of(settings))
    search = alone("search", "site.example", "word")
    assert (search.returncode, search.stdout) == (1, "")
    assert "there is no orchestrator at this broker" in search.stderr
    assert "perennial up" in search.stderr
    assert "--pack FILE" in search.stderr
    searchers = alone("searchers")
    assert (searchers.returncode, searchers.stdout) == (1, "")
    assert "perennial up" in searchers.stderr


def test_a_pack_without_searcher_is_reported_with_the_reason(settings: Settings) -> None:
    placed = routes(
        route("big.example", missing=2, unplaced_reason="9 MB, and no searcher has so much"), route("a.example", "one")
    )
    with orchestrator(settings.broker, lambda: placed):
        shown = command(environment_of(settings))("searchers")
        searched = command(environment_of(settings))("search", "big.example", "word")
    assert shown.returncode == searched.returncode == 1
    assert shown.stdout.splitlines()[1].endswith("\t0\t2\t9 MB, and no searcher has so much")
    assert "big.example is on no searcher at the moment: 9 MB, and no searcher has so much\n" in searched.stderr


def test_searchers_and_packs_are_shown(perennial: Perennial) -> None:
    shown = perennial("searchers")
    assert shown.returncode == 0
    kinds = [line.split("\t") for line in shown.stdout.splitlines()]
    assert [(kind, name) for kind, name, *_ in kinds[1:]] == [("pack", "other.example"), ("pack", "site.example")]
    assert kinds[0][0] == "searcher"
    shown = json.loads(perennial("searchers", "--json").stdout)
    assert [route["domain"] for route in shown["routes"]] == ["other.example", "site.example"]
    assert shown["searchers"][0]["packs"] == 2


def test_a_pack_file_is_searched_without_services(tmp_path: Path) -> None:
    nowhere = {"PERENNIAL_DATA_DIR": str(tmp_path / "data"), "PATH": "/usr/bin:/bin"}
    perennial = command(nowhere)
    other = write_pack(tmp_path / "other.sqlite", [page("/", "Other", "elsewhere")], domain="other.example")
    site = write_pack(tmp_path / "site.sqlite", PAGES)
    assert "Other\n" in perennial("search", "other.example", "elsewhere", "--pack", str(other)).stdout
    assert "Other\n" in perennial("search", "--pack", str(other), "elsewhere").stdout
    both = perennial("search", "--pack", str(other), "--pack", str(site), "word", "--json")
    assert json.loads(both.stdout)["domains"] == ["other.example", "site.example"]
    assert json.loads(both.stdout)["total"] == 2
    none = perennial("search", "--pack", str(tmp_path / "none"), "x")
    assert (none.returncode, "does not exist" in none.stderr) == (2, True)
    assert perennial("search", "--pack", __file__, "x").returncode == 1


def test_the_web_process_prints_its_address_serves_and_ends_on_sigterm(running: Running, tmp_path: Path) -> None:
    with web_process(running.environment, tmp_path / "web.log") as (web, url):
        assert "Page two" in httpx.get(url, params={"domain": "site.example", "q": "second"}, timeout=30).text
        web.process.terminate()
        assert web.process.wait(timeout=30) in {0, -signal.SIGTERM}
        assert web.log == f"Search page: {url}/\n"
