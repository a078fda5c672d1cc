"""Pages and API of sites, over real HTTP: lists, forms, acts with their audit, and what hostile sites bring."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from bs4 import BeautifulSoup
from fastapi.routing import APIRoute
from pydantic import SecretStr

from app.broker.connection import connected
from app.crawl.frontier.frontier import Frontier
from app.crawl.frontier.values import Crawl
from app.crawl.parse.classify import FetchResult
from app.crawl.policy import CrawlPolicy
from app.crawl.record.crawls import CrawlRecord, CrawlSettings, CrawlState, add_crawl, list_crawls, update_crawl
from app.crawl.record.reasons import Reason
from app.errors import ActRefused
from app.messages.dead_sets import dead_sets
from app.operations import crawls, removal
from app.operations.audit import AuditEntry, AuditLog
from app.operations.context import OperatorContext
from app.operations.operators import command_operator
from app.operations.site_list import list_page
from app.pack.manifest import read_manifest
from app.pack.packer import pack_full
from app.pack.plan import FullPackPlan
from app.sites.search_reports import SearchReport, add_to_report, today
from app.sites.site import Site
from app.sites.stored import add_site, list_sites, read_site
from app.storage.layout import manifest_key
from app.storage.store import ObjectStore
from app.timers.timers import full_pack_callback
from app.topology.declare import declare_all
from app.topology.queues import DEAD_SET
from app.topology.retry_policies import site_policy
from app.web import application
from app.web.application import create_app
from app.web.ops.access import Access
from app.web.ops.requests import OpsState
from config.settings import Settings
from tasks.base import Context
from tests.integration.test_crawl_report import DOMAIN, complete, links, policy, url
from tests.packs import page, publish, put, write_pack
from tests.support.broker import Broker
from tests.support.operators import READ_PASSWORD, api_headers, form_token, operated, with_operators
from tests.support.scripted import ScriptedSearchClient
from tests.support.stores import RecordingStore
from tests.support.web import served

pytestmark = pytest.mark.integration

__all__ = ["policy"]

BEARER = api_headers()
HOSTILE = '<script>alert(1)</script>"><img src=x onerror=alert(2)>'


@pytest.fixture
def search_client(process: Context) -> ScriptedSearchClient:
    path = process.settings.data_dir / "pack.sqlite"
    return ScriptedSearchClient([write_pack(path, [page("/one", "One")], domain=DOMAIN)])


@pytest.fixture
def operable(process: Context) -> Settings:
    """Return settings with operators; all queues are declared, as a worker does."""
    settings = with_operators(process.settings)
    with connected(settings.broker) as connection:
        assert not declare_all(connection, settings)
    return settings


@pytest.fixture
def client(operable: Settings, search_client: ScriptedSearchClient) -> Iterator[httpx.Client]:
    with operated(operable, search_client) as client:
        yield client


def send(client: httpx.Client, path: str, **fields: str) -> httpx.Response:
    """Send a form, and follow to the page that answers."""
    return client.post(path, data={"form_token": form_token(client), **fields}, follow_redirects=True)


def audit(process: Context, act: str) -> list[AuditEntry]:
    return [entry for entry in AuditLog(process.store).entries() if entry.act == act]


def text_of(answer: httpx.Response) -> str:
    """Return the text of a page, without its elements."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", answer.text)).split())


def form_of(client: httpx.Client, domain: str) -> dict[str, str]:
    """Return the fields of the site's form as a browser would send them."""
    page = client.get(f"/ops/sites/{domain}").text
    form = page[page.index('class="stacked settings"') :].partition("</form>")[0]
    fields = dict(re.findall(r'<input (?:id="[^"]*" )?(?:type="hidden" )?name="(\w+)" value="([^"]*)"', form))
    fields |= dict(re.findall(r'<textarea [^>]*name="(\w+)"[^>]*>\n([^<]*)</textarea>', form))
    fields |= dict(re.findall(r'<select [^>]*name="(\w+)"[^>]*>.*?value="([^"]*)" selected', form))
    fields |= dict.fromkeys(re.findall(r'type="checkbox" name="(\w+)" value="on" checked', form), "on")
    return {name: html.unescape(value) for name, value in fields.items() if name != "form_token"}


def test_a_site_is_added_changed_paused_and_removed_and_each_act_is_audited(
    process: Context, client: httpx.Client
) -> None:
    added = send(client, "/ops/sites", domain="B.gov", schedule="6h", why="asked by its owner")
    assert added.url.path == "/ops/sites/b.gov"
    assert "b.gov is a site now." in text_of(added)
    assert audit(process, "site add")[0].why == "asked by its owner"
    fields = form_of(client, "b.gov") | {
        "delay": "2m", "start_urls": "https://b.gov/x\r\nhttps://b.gov/y", "headers": "X-Key: the-secret",
        "search_report": "on", "best_bets": '{"queries": ["tax"], "url": "https://b.gov/tax", "title": "Tax"}',
        "field_weights": "title: 3",
    }  # fmt: skip
    changed = send(client, "/ops/sites/b.gov", **fields, why="slower")
    named = "best_bets, delay, field_weights, headers, search_report, start_urls"
    assert f"Changed: {named}." in text_of(changed)
    site = read_site(process.store, "b.gov")
    assert site is not None
    assert (site.delay, site.headers) == (120.0, {"X-Key": "the-secret"})
    assert site.start_urls == ("https://b.gov/x", "https://b.gov/y")
    assert (site.search_report, site.best_bets[0].title, site.field_weights) == (True, "Tax", {"title": 3.0})
    [entry] = audit(process, "site set")
    assert (entry.operator, entry.origin, entry.details["fields"]) == ("kim", "page", named.split(", "))
    assert "Nothing changes." in text_of(send(client, "/ops/sites/b.gov", **form_of(client, "b.gov")))
    without = {name: value for name, value in form_of(client, "b.gov").items() if name != "search_report"}
    send(client, "/ops/sites/b.gov", **without)
    site = read_site(process.store, "b.gov")
    assert site is not None
    assert not site.search_report
    assert "b.gov is paused" in text_of(send(client, "/ops/sites/b.gov/pause"))
    assert "b.gov is active" in text_of(send(client, "/ops/sites/b.gov/resume"))
    assert "Settings yes" in text_of(client.get("/ops/sites/b.gov/remove"))
    assert "b.gov is deleted" in text_of(send(client, "/ops/sites/b.gov/remove", confirm="b.gov", why="closed"))
    assert read_site(process.store, "b.gov") is None
    assert [each.act for each in AuditLog(process.store).entries()][:4] == [
        "site remove", "site resume", "site pause", "site set",
    ]  # fmt: skip
    assert client.get("/ops/sites/b.gov").status_code == 404


def test_a_pack_is_rolled_back_after_a_confirmation_and_only_the_one_that_was_shown(
    process: Context, client: httpx.Client
) -> None:
    site = "site.example"
    path, base = f"/ops/sites/{site}/rollback", f"/api/v1/ops/sites/{site}/rollback"
    for number, crawl in enumerate(("good", "bad")):
        put(process.store, *(page(f"/{each}", crawl) for each in range(4 + number)))
        pack_full(process.store, site, FullPackPlan(crawl_id=crawl))
        linked = "Roll back to generation 1" in client.get(f"/ops/sites/{site}").text
        assert linked == (crawl == "bad")
        assert client.get(path).status_code == (200 if linked else 400)
    shown = text_of(client.get(path))
    assert "generation 2, built" in shown
    assert "5 pages" in shown
    assert '<input type="hidden" name="replaces" value="2">' in client.get(path).text
    refused = send(client, path, replaces="1", why="too late")
    assert (refused.status_code, "generation 2 is served by now, not 1" in text_of(refused)) == (400, True)
    assert send(client, path).status_code == 400
    assert read_manifest(process.store, site).generation == 2
    done = send(client, path, replaces="2", why="a bad crawl")
    assert done.url.path == f"/ops/sites/{site}"
    assert "serves generation 1 of" in text_of(done)
    assert (read_manifest(process.store, site).kind, read_manifest(process.store, site).pages) == ("rollback", 4)
    planned = client.get(base, headers=BEARER).json()
    assert (planned["serves"], planned["replaces"], planned["generation"]) == (2, 3, None)
    taken_back = client.post(base, json={"replaces": 3}, headers=BEARER).json()
    assert taken_back == planned | {"generation": 4}
    assert [(each.why, each.origin) for each in audit(process, "site rollback")] == [
        ("", "api"),
        ("a bad crawl", "page"),
    ]


def test_a_rollback_is_refused_if_another_pack_is_written_after_it_was_planned(process: Context) -> None:
    site, ops = "site.example", OperatorContext(process.settings, command_operator())
    for crawl in ("good", "bad"):
        put(process.store, page("/", crawl))
        pack_full(process.store, site, FullPackPlan(crawl_id=crawl))
    plan = removal.rollback_of(ops, site)
    pack_full(process.store, site, FullPackPlan(crawl_id="repaired"), force=True)
    with pytest.raises(ActRefused, match="another pack was written meanwhile"):
        removal.roll_back(ops, plan)
    assert read_manifest(process.store, site).crawl_id == "repaired"


@pytest.mark.parametrize(
    ("path", "field", "fields", "reason"),
    [
        ("/ops/sites/b.gov/remove", "confirm", {"confirm": "b.go"}, "type b.gov to delete all of it"),
        ("/ops/block", "url", {"domain": "b.gov", "url": "https://other.example/"}, "other.example"),
        ("/ops/unblock", "url", {"domain": "b.gov", "url": "ftp://b.gov/"}, "ftp"),
        ("/ops/index", "url", {"url": "ftp://b.gov/", "how": "page"}, "ftp"),
        ("/ops/sites", "domain", {"domain": "b.gov", "schedule": "6h"}, "b.gov is a site already"),
        ("/ops/sites", "schedule", {"domain": "c.gov", "schedule": "sometimes"}, "sometimes"),
    ],
)
def test_a_refused_form_is_shown_again_with_its_values_and_the_reason_beside_the_field(
    process: Context, client: httpx.Client, path: str, field: str, fields: dict[str, str], reason: str
) -> None:
    add_site(process.store, Site.of("b.gov", {}))
    refused = send(client, path, **fields, why="a typing error")
    assert refused.status_code == 400
    [element] = re.findall(r'<input [^>]*aria-invalid="true"[^>]*>', refused.text)
    assert f'name="{field}" value="{html.escape(fields[field])}"' in element
    assert f'aria-describedby="fault-{field}"' in element
    assert reason in refused.text.partition(f'id="fault-{field}">')[2].partition("</span>")[0]
    assert refused.text.count('value="a typing error"') == 1
    assert [site.domain for site in list_sites(process.store)] == ["b.gov"]


def test_invalid_fields_are_said_beside_them_and_the_input_is_kept_but_no_secret(
    process: Context, client: httpx.Client
) -> None:
    add_site(process.store, Site.of("b.gov", {}))
    fields = form_of(client, "b.gov")
    wrong = {
        "schedule": "sometimes",
        "delay": "9999999",
        "include": "/a\n[",
        "headers": "X-Key: pass word!",
        "name": "Kept",
    }
    answer = send(client, "/ops/sites/b.gov", **fields | wrong)
    assert answer.status_code == 400
    for name in ("schedule", "delay", "include", "headers"):
        described = answer.text.partition(f'id="d-{name}"')[2].partition("</p>")[0]
        assert '<span class="bad">' in described, name
    assert all(text in answer.text for text in ('value="sometimes"', 'value="9999999"', 'value="Kept"', "/a\n["))
    assert "pass word!" not in answer.text
    assert "pass word!" not in str([*AuditLog(process.store).entries()])
    assert "line 1: expected a name" in text_of(send(client, "/ops/sites/b.gov", **fields | {"cookies": "session"}))
    assert read_site(process.store, "b.gov") == Site.from_json(process.store.get("sites/b.gov.json").data)
    send(client, "/ops/sites/b.gov", **fields | {"name": "First"})
    late = send(client, "/ops/sites/b.gov", **fields | {"name": "Second"})
    assert (late.status_code, "changed after this form was opened" in late.text) == (400, True)
    assert 'value="Second"' in late.text
    # What another operator has set meanwhile is beside what differs from it, and is not lost unseen.
    assert "It is now: First." in late.text.partition('id="d-name"')[2].partition("</p>")[0]
    assert late.text.count("It is now: ") == 1
    for domain, reason in (("no host", "URL"), ("b.gov", "a site already"), ("", "expected the domain")):
        refused = send(client, "/ops/sites", domain=domain)
        assert (refused.status_code, reason in text_of(refused)) == (400, True)


def test_crawls_are_started_paused_resumed_cancelled_and_packed(
    process: Context, policy: CrawlPolicy, client: httpx.Client
) -> None:
    complete(process, policy, "", "<title>Home</title>Welcome here" + links("a", "b"))
    shown = text_of(client.get(f"/ops/sites/{DOMAIN}"))
    assert "Under way" in shown
    assert "2 known pages 1 indexed" in shown
    assert "pages/s since its start" in shown
    act = f"/ops/sites/{DOMAIN}"
    assert "Crawls of a.gov that are paused now: 1." in text_of(send(client, f"{act}/crawls", state="paused"))
    assert "Under way: paused" in text_of(client.get(f"/ops/sites/{DOMAIN}"))
    assert "its crawl is paused" in text_of(client.get("/ops/sites"))
    assert "no crawl that is running" in text_of(send(client, f"{act}/crawls", state="paused"))
    assert "Crawls of a.gov that are running now: 1." in text_of(send(client, f"{act}/crawls", state="running"))
    assert "state: Field required" in text_of(send(client, f"{act}/crawls"))
    assert "Crawls of a.gov that are cancelled now: 1." in text_of(send(client, f"{act}/crawls", state="cancelled"))
    assert "pack_full of a.gov is posted" in text_of(send(client, f"{act}/pack", full="on", force="on"))
    assert "pack_incremental of a.gov" in text_of(send(client, f"{act}/pack"))
    assert send(client, f"{act}/repair").status_code == 200
    assert send(client, f"{act}/crawls", state="destroyed").status_code == 400
    posted = send(client, "/ops/index", url=url("x"), how="now")
    assert "The index of https://a.gov/x is posted." in text_of(posted)
    assert "The crawl from https://a.gov/ is posted." in text_of(send(client, "/ops/index", url=url(""), how="crawl"))
    refused = send(client, "/ops/index", url="ftp://a.gov/", how="crawl")
    assert (refused.status_code, 'value="ftp://a.gov/"' in refused.text) == (400, True)
    done = [(entry.act, entry.subject) for entry in AuditLog(process.store).entries() if entry.result != "refused"]
    assert {("pause", DOMAIN), ("resume", DOMAIN), ("cancel", DOMAIN), ("index+crawl", url(""))} <= set(done)
    assert audit(process, "pack_full")[0].details == {"force": True}


def test_a_crawl_that_ends_while_it_is_to_be_paused_is_not_said_to_be_paused(
    process: Context, policy: CrawlPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete(process, policy, "", "<title>Home</title>Welcome here" + links("a", "b"))
    ops = OperatorContext(process.settings, command_operator())

    def ended(store: ObjectStore, domain: str) -> list[CrawlRecord]:
        found = list_crawls(store, domain)
        for record in found:
            update_crawl(store, record.ref, lambda present: replace(present, state="done"))
        return found

    monkeypatch.setattr(crawls, "list_crawls", ended)
    with pytest.raises(ActRefused, match="no crawl that is running"):
        crawls.change_crawls(ops, DOMAIN, "paused")
    assert ops.frontier.progress(DOMAIN).state == "running"


def test_a_crawl_that_two_operators_change_at_once_has_one_state_in_store_and_redis(
    process: Context, policy: CrawlPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete(process, policy, "", "<title>Home</title>Welcome here" + links("a", "b"))
    ops, set_state = OperatorContext(process.settings, command_operator()), Frontier.set_state

    def set_late(frontier: Frontier, crawl_id: str, state: CrawlState) -> None:
        monkeypatch.setattr(Frontier, "set_state", set_state)
        assert crawls.change_crawls(ops, DOMAIN, "cancelled").crawls == [crawl_id]
        set_state(frontier, crawl_id, state)

    monkeypatch.setattr(Frontier, "set_state", set_late)
    crawls.change_crawls(ops, DOMAIN, "paused")
    assert [record.state for record in list_crawls(process.store, DOMAIN)] == ["cancelled"]
    assert ops.frontier.progress(DOMAIN).state == "cancelled"


def test_urls_are_listed_by_reason_and_one_is_explained_with_its_history(
    process: Context, policy: CrawlPolicy, client: httpx.Client
) -> None:
    complete(process, policy, "", "<title>Home</title>Welcome here" + links("a", "none", "login", rel="nofollow"))
    complete(process, policy, "a", "<title>A</title>All about amber" + links("none"))
    complete(process, policy, "none", FetchResult("gone", "404", status=404))
    base = f"/ops/sites/{DOMAIN}"
    listed = text_of(client.get(f"{base}/urls"))
    assert "indexed 2" in listed
    assert "404 1" in listed
    only = client.get(f"{base}/urls", params={"reason": "404"})
    assert url("none") in only.text
    assert url("a") not in only.text
    assert client.get(f"{base}/urls", params={"page": "9"}).status_code == 200
    assert client.get(f"{base}/urls", params={"reason": "unheard-of"}).status_code == 400
    assert client.get(f"{base}/urls", params={"page": "0"}).status_code == 400
    assert client.get(f"{base}/urls", params={"page": "9" * 30}).status_code == 200
    explained = text_of(client.get("/ops/url", params={"url": url("none")}))
    assert "gone: 404" in explained
    assert "History" in explained
    broken = text_of(client.get(f"{base}/broken-links"))
    assert f"{url('none')} 404 1 {url('a')}" in broken
    assert client.get("/ops/url", params={"url": "https://"}).status_code == 400
    assert client.get("/ops/sites/never.gov/urls").status_code == 404
    history = client.get("/api/v1/ops/history", params={"url": url("none")}, headers=BEARER).json()
    assert [(each["crawl_id"], each["entry"]["reason"]) for each in history] == [("c", "404")]
    excluded = client.get("/api/v1/ops/history", params={"url": url("never")}, headers=BEARER).json()
    assert [each["entry"] for each in excluded] == [None]


def test_a_page_is_blocked_and_unblocked(process: Context, client: httpx.Client) -> None:
    add_site(process.store, Site.of(DOMAIN, {}))
    blocked = send(client, "/ops/block", domain=DOMAIN, url=url("x"), why="wrong")
    assert f"{url('x')} is blocked, and it was not stored." in text_of(blocked)
    assert f"{url('x')} Unblock" in text_of(blocked)
    assert "No page is blocked." in text_of(send(client, "/ops/unblock", domain=DOMAIN, url=url("x")))
    for given in ("", "https://other.example/"):
        assert send(client, "/ops/block", domain=DOMAIN, url=given).status_code == 400
    assert [entry.act for entry in AuditLog(process.store).entries()][:2] == ["unblock", "block"]


def test_the_last_crawls_are_compared_and_what_is_not_recorded_is_a_dash(
    process: Context, client: httpx.Client, search_client: ScriptedSearchClient
) -> None:
    settings = CrawlSettings(scope="exact", max_pages=9, max_depth=9, host_delay=0, host_concurrency=1)
    counts = [{"indexed": 7, "new": 2, "changed": 1, "gone": 3, "seconds": 90}, {"indexed": 8}]
    for number, given in enumerate(counts):
        record = CrawlRecord(
            id=f"c{number}", domain=DOMAIN, start_url=f"http://{DOMAIN}/", settings=settings,
            started=datetime(2026, 11, 20 - number, tzinfo=UTC), timer_timeout=30, state="done", counts=given,
            reasons={"indexed": 7, "dead-lettered": 4, "500": 2, "404": 3} if not number else {},
        )  # fmt: skip
        add_crawl(process.store, record)
    publish(
        process.store, write_pack(process.settings.data_dir / "p.sqlite", [page("/one")], domain=DOMAIN), domain=DOMAIN
    )
    opened = client.get(f"/ops/sites/{DOMAIN}")
    assert f'name="url" value="http://{DOMAIN}/"' in opened.text, "the next crawl begins where the latest one began"
    assert f'name="start_url" value="http://{DOMAIN}/"' in opened.text, "and so do crawls of the site that is added"
    shown = text_of(opened)
    assert "done 7 2 1 3 dead-lettered 4, 404 3, 500 2 90 s" in shown
    assert "done 8 – – – – –" in shown
    assert "Served by local" in shown
    search_client.unknown = True
    assert "unknown: the orchestrator does not answer" in text_of(client.get(f"/ops/sites/{DOMAIN}"))
    assert "where packs are served is unknown" in text_of(client.get("/ops/sites"))
    send(client, "/ops/sites", domain=DOMAIN, start_url=f"http://{DOMAIN}/")
    site = read_site(process.store, DOMAIN)
    assert site is not None
    assert site.start_urls == (f"http://{DOMAIN}/",)
    process.store.put(manifest_key(DOMAIN), b"{damaged")
    damaged = client.get(f"/ops/sites/{DOMAIN}")
    assert (damaged.status_code, manifest_key(DOMAIN) in damaged.text) == (200, True)
    assert f"damaged: {manifest_key(DOMAIN)}" in text_of(client.get("/ops/sites"))
    process.store.put(f"sites/{DOMAIN}.json", b"{damaged")
    assert "The settings of the site cannot be read" in text_of(client.get(f"/ops/sites/{DOMAIN}"))
    assert "its settings cannot be read" in text_of(client.get("/ops/sites"))


def test_a_site_that_is_found_damaged_by_the_list_counts_as_in_trouble_at_once(
    process: Context, client: httpx.Client
) -> None:
    add_site(process.store, Site.of("b.gov", {}))
    process.store.put("sites/c.gov.json", b"{damaged")
    for _ in range(2):
        assert "2 sites; 1 in trouble, which comes first." in text_of(client.get("/ops/sites"))


def test_a_crawl_that_ends_records_what_is_new_changed_and_gone(
    process: Context, policy: CrawlPolicy, client: httpx.Client
) -> None:
    for name, text in {"": "Welcome", "a": "Amber", "b": "Birch", "c": "Cedar"}.items():
        complete(process, policy, name, f"<title>T</title>{text}" + links("a", "b", "c"))
    end(process, "c")
    later = Crawl("d", DOMAIN, url(""), datetime.now(UTC), recorded=True)
    process.recorder.begin(later, timer_timeout=30, callback=full_pack_callback(DOMAIN, "d").message)
    for name, text in {"": "Welcome", "a": "Agate", "e": "Elm"}.items():
        complete(process, policy, name, f"<title>T</title>{text}" + links("a", "b", "c"), crawl_id="d")
    complete(process, policy, "b", FetchResult("gone", "404", status=404), crawl_id="d")
    complete(process, policy, "c", FetchResult("skipped", Reason.TOO_LARGE), crawl_id="d")
    end(process, "d")
    crawls = client.get(f"/api/v1/ops/sites/{DOMAIN}", headers=BEARER).json()["crawls"]
    names = ("id", "state", "new", "changed", "gone")
    assert [tuple(crawl[name] for name in names) for crawl in crawls] == [
        ("d", "done", 1, 1, 1), ("c", "done", None, None, None),
    ]  # fmt: skip
    assert all(crawl["seconds"] is not None for crawl in crawls)


def end(process: Context, crawl_id: str) -> None:
    crawl = process.frontier.crawl(crawl_id)
    assert crawl is not None
    assert process.recorder.end(crawl)


def test_searches_are_reported_and_counting_that_is_off_is_said(process: Context, client: httpx.Client) -> None:
    counts = SearchReport(9, 2, 1, Counter({HOSTILE: 6}), Counter({("tax", url("tax")): 5}))
    add_to_report(process.store, DOMAIN, today(), counts)
    shown = client.get(f"/ops/sites/{DOMAIN}/searches")
    assert "Counting is off." in text_of(shown)
    assert "9 searches, 2 without results, 1 clicks" in text_of(shown)
    assert HOSTILE not in shown.text
    assert f"tax {url('tax')} 5" in text_of(shown)
    add_site(process.store, Site.of(DOMAIN, {"search_report": True}))
    assert "Counting is off." not in client.get(f"/ops/sites/{DOMAIN}/searches").text
    report = client.get(f"/api/v1/ops/sites/{DOMAIN}/searches", headers=BEARER).json()
    assert (report["counted"], report["queries"], report["clicked"][0]["clicks"]) == (True, {HOSTILE: 6}, 5)


def test_what_a_hostile_site_brings_is_only_text(process: Context, policy: CrawlPolicy, client: httpx.Client) -> None:
    add_site(process.store, Site.of(DOMAIN, {"name": HOSTILE, "include": ["/</textarea><script>"]}))
    complete(process, policy, "", f"<title>{html.escape(HOSTILE)}</title>Welcome" + links("a"))
    complete(process, policy, "a?<script>\u202e", FetchResult("gone", f"404 {HOSTILE}\x1b[31m", status=404))
    pages = [
        client.get("/ops/sites"),
        client.get(f"/ops/sites/{DOMAIN}"),
        client.get(f"/ops/sites/{DOMAIN}/urls"),
        client.get("/ops/url", params={"url": url("")}),
        client.get("/ops/sites", params={"q": HOSTILE}),
        send(client, "/ops/sites", domain=HOSTILE),
        send(client, "/ops/index", url=HOSTILE, how="crawl"),
        send(client, f"/ops/sites/{DOMAIN}", **form_of(client, DOMAIN) | {"name": HOSTILE, "schedule": HOSTILE}),
    ]
    for answer in pages:
        assert not re.search(r"<script|<img|\x1b|\u202e", answer.text), answer.url


@pytest.fixture
def reader(operable: Settings, search_client: ScriptedSearchClient) -> Iterator[httpx.Client]:
    with operated(operable, search_client, password=READ_PASSWORD) as reader:
        yield reader


def test_an_operator_that_may_only_read_sees_no_form_and_each_act_is_refused_and_audited(
    process: Context, reader: httpx.Client, broker: Broker
) -> None:
    site = "site.example"
    add_site(process.store, Site.of(site, {}))
    for crawl in ("good", "bad"):
        put(process.store, page("/", crawl))
        pack_full(process.store, site, FullPackPlan(crawl_id=crawl))
    process.timers.start(site, timeout=600, callback=full_pack_callback(site))
    broker.post(b"{}", exchange=DEAD_SET, key="site.index")
    [letter] = dead_sets(process.settings).letters()
    queue = site_policy(process.settings).delay_queue(600_000)
    process.publisher.declare([queue])
    delay = queue.name
    broker.post(b"{}", exchange="", key=delay)
    of_site = (f"/ops/sites/{site}{path}" for path in ("", "/remove", "/rollback"))
    for path in (
        "/ops/sites",
        "/ops/dead",
        f"/ops/dead/letter/{letter.id}",
        "/ops/queues",
        f"/ops/waiting?queue={delay}",
        *of_site,
    ):
        page_of_reader = BeautifulSoup(reader.get(path).text, "html.parser")
        assert [each.text for each in page_of_reader.select("form[method=post] button")] == ["Log out"], path
    # Each act reads the fields that it knows. Acts on the event queue need a database, and have a test of their own.
    fields = {
        **{"domain": site, "url": f"https://{site}/x", "how": "crawl", "confirm": site, "state": "paused"},
        **{"replaces": "2", "act": "send", "every": "true", "text": "a note"},
        **{"verb": "replay", "scope": "marked", "letter": f"{DEAD_SET}/{letter.id}", "arguments": "{}"},
    }
    routes = [route for module in application._OPERATIONS for route in module.subject.pages.routes]
    posts = {route.path for route in routes if isinstance(route, APIRoute) and "POST" in (route.methods or ())}
    acts = {path for path in posts if not path.startswith(("/ops/art", "/ops/log"))}
    for path in acts:
        # A letter could be sent to a queue, too.
        queue = {"queue": delay} if "waiting" in path else {}
        answer = send(reader, path.format(domain=site, ident=letter.id, do="pause"), **fields, **queue)
        assert (answer.status_code, "may read, and not act" in answer.text) == (403, True), path
    refused = [entry for entry in AuditLog(process.store).entries() if entry.result.startswith("refused")]
    assert (len(refused), {entry.operator for entry in refused}) == (len(acts), {"kim"})
    assert len(acts) > 15
    assert read_site(process.store, site) is not None
    assert broker.depths([DEAD_SET, delay, "site.index"]) == [1, 1, 0]


def test_a_list_of_a_thousand_sites_reads_only_the_objects_of_one_page(
    process: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = process.settings.data_dir / "store"
    folder = root / "sites"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(1_000):
        domain = f"s{number:04}.gov"
        (folder / f"{domain}.json").write_bytes(Site.of(domain, {}).to_json())
    store = RecordingStore(root)
    ops = OperatorContext(process.settings, command_operator())
    monkeypatch.setattr(ops, "store", store)
    found = list_page(ops, text="s0")
    assert (found.total, found.matching, len(found.sites)) == (1_000, 1_000, 25)
    assert len(store.read) <= 3 * 25
    last = list_page(ops, text="S012")
    assert [site.domain for site in last.sites] == [f"s012{digit}.gov" for digit in range(10)]
    assert list_page(ops, offset=1_000).sites == ()


def test_a_site_is_found_by_the_letters_of_its_domain(process: Context) -> None:
    add_site(process.store, Site.of("bücher.example", {}))
    add_site(process.store, Site.of("other.example", {}))
    for text in ("Bücher.example", "bücher", "xn--bcher", "ü x"):
        found = list_page(OperatorContext(process.settings, command_operator()), text=text)
        assert [site.domain for site in found.sites] == ([] if " " in text else ["xn--bcher-kva.example"]), text


def test_the_api_does_what_the_pages_do(process: Context, policy: CrawlPolicy, client: httpx.Client) -> None:
    complete(process, policy, "", "<title>Home</title>Welcome here" + links("a"))
    client.headers.update(BEARER)
    base = f"/api/v1/ops/sites/{DOMAIN}"

    def post(path: str, **body: object) -> httpx.Response:
        return client.post(path, json=body)

    added = post("/api/v1/ops/sites", domain=DOMAIN, fields={"headers": {"X-Key": "name"}}, why="new")
    assert (added.status_code, added.json()["fields"]["headers"]) == (200, {"X-Key": "name"})
    assert post(base, fields={"delay": 3}).json()["changed"] == ["delay"]
    wrong = post(base, fields={"delay": "soon", "unheard": 1})
    assert (wrong.status_code, wrong.json()["type"]) == (400, "/problems/invalid")
    assert "unheard" in wrong.json()["detail"]
    listed = client.get("/api/v1/ops/sites", params={"text": "a.g"}).json()
    assert [(each["domain"], each["pages"]) for each in listed["sites"]] == [(DOMAIN, 1)]
    shown = client.get(base).json()
    assert (shown["fields"]["delay"], shown["running"]["indexed"], shown["served"]["is_known"]) == (3.0, 1, True)
    assert post(f"{base}/pause").json()["crawls"] == ["c"]
    assert post(f"{base}/resume").json()["crawls"] == ["c"]
    assert post(f"{base}/crawls", state="paused").json()["crawls"] == ["c"]
    assert post(f"{base}/crawls", state="paused").status_code == 400
    assert post(f"{base}/pack", full=True).json()["posted"] == "pack_full"
    assert post(f"{base}/repair").json()["domain"] == DOMAIN
    assert post("/api/v1/ops/index", url=url("x")).json()["posted"] == "index"
    assert post("/api/v1/ops/index", url=url("x"), crawl=True, now=True).status_code == 400
    assert post("/api/v1/ops/block", url=url("")).json() == {
        "url": url(""), "domain": DOMAIN, "blocked": True, "stored": True,
    }  # fmt: skip
    assert post("/api/v1/ops/unblock", url=url("")).json()["blocked"] is False
    assert client.get(f"{base}/inventory").json()["has_settings"] is True
    assert post(f"{base}/remove", confirm="").status_code == 400
    removed = post(f"{base}/remove", confirm=DOMAIN).json()
    assert (removed["has_settings"], removed["removed_dead_letters"]) == (True, 0)
    assert client.get(base).status_code == 404
    acts = [entry.act for entry in AuditLog(process.store).entries() if entry.origin == "api"]
    assert len(acts) == 13
    foreign = client.post(f"{base}/pause", json={}, headers={"Origin": "https://other.example"})
    assert foreign.status_code == 403
    assert client.post(f"{base}/pause", json={}, headers={"Authorization": "Bearer x"}).status_code == 401


def test_a_service_that_is_away_is_a_problem_with_status_503(process: Context) -> None:
    wrong: list[tuple[dict[str, Any], list[str]]] = [
        ({"redis_url": SecretStr("redis://127.0.0.1:1/0")}, ["sites", "sites/b.gov"]),
        ({"broker_url": SecretStr("amqp://127.0.0.1:1")}, ["sites/b.gov/pack"]),
        ({"store_url": "file:///nowhere"}, ["sites"]),
    ]
    for away, paths in wrong:
        settings = with_operators(process.settings, **away)
        with served(create_app(ScriptedSearchClient([]), ops=OpsState(settings, Access.of(settings)))) as client:
            for path in paths:
                options: dict[str, Any] = {"json": {}} if path.endswith("/pack") else {}
                method = "POST" if options else "GET"
                answer = client.request(method, f"/api/v1/ops/{path}", headers=BEARER, **options)
                assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json"), away
                assert answer.json()["detail"]
