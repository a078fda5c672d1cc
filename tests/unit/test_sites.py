"""Sites: validation by field and reason, conditional writes, schedules, names, declared files and path patterns."""

from __future__ import annotations

import itertools
import json
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from typer.testing import CliRunner

from app.cli import sites as command
from app.crawl.path_rules import PathRules
from app.crawl.record.removed_sites import is_removed, note_removed
from app.crawl.url_runs import headers_for
from app.crawl.urls import parse_crawl_url
from app.errors import InvalidSite, SecretMissing, StoreError
from app.messages.envelopes import site_message
from app.operations import sites as operations
from app.operations.audit import AuditLog
from app.operations.context import OperatorContext
from app.operations.operators import command_operator
from app.sites.crawl_policies import SitePolicies, policy_of
from app.sites.names import SiteNames
from app.sites.schedule import Schedule
from app.sites.scheduler import CrawlScheduler
from app.sites.site import Site
from app.sites.stored import Start, add_site, list_sites, read_site, read_start, update_site, write_start
from app.storage.store import ObjectStore
from config.settings import Settings
from tests.support.command import as_process_with
from tests.support.stores import folder_store

pytestmark = pytest.mark.unit

NOON = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return folder_store(tmp_path)


def test_a_change_names_no_field_that_another_operator_changed_at_the_same_time(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OperatorContext, "store", store)
    add_site(store, Site.of("site.example", {}))

    def fields_of(site: Site) -> dict[str, Any]:
        if not site.name:
            update_site(store, "site.example", lambda _: Site.of("site.example", {"name": "Of another operator"}))
        return {"delay": 2}

    site, changed = operations.change(OperatorContext(Settings(), command_operator()), "site.example", fields_of)
    assert (site.name, site.delay) == ("Of another operator", 2.0)
    assert set(changed) == {"delay"}
    assert next(AuditLog(store).entries()).details == {"fields": ["delay"]}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"delay": -1}, "delay: Input should be greater than or equal to 0"),
        ({"max_pages": "many"}, "max_pages: Input should be a valid integer"),
        ({"schedule": "61 * * * *"}, "schedule: '61 * * * *' is neither an interval"),
        ({"schedule": "daily"}, "cron expression of five fields, such as '0 3 * * *'"),
        ({"schedule": "0s"}, "schedule: '0s': an interval is 1 s at least"),
        ({"pages": 3}, "pages: unknown field; the fields are name, state"),
        ({"exclude": ["private"]}, "exclude.0: 'private': a pattern begins with '/'"),
        ({"start_urls": ["https://other.example/"]}, "https://other.example/ is not in the scope 'exact'"),
        ({"start_urls": ["ftp://site.example/"]}, "start_urls.0: URL 'ftp://site.example/'"),
        ({"headers": {"Host": "name"}}, "headers: 'Host' is not a name"),
        ({"proxy": "socks5://h:1"}, "proxy: expected http:// or https://"),
        ({"proxy": "http://a:1;http://b:2"}, "proxy: expected http:// or https://"),
        ({"scope": "all"}, "scope: Input should be 'exact' or 'suffix'"),
        ({"best_bets": ["[" * 100_000]}, "best_bets.0: expected JSON such as"),
    ],
)
def test_an_invalid_field_is_refused_by_name_and_reason(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidSite, match=rf"^site\.example: .*{re.escape(text)}"):
        Site.of("Site.example", fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"headers": {"Authorization": "Bearer hunter2"}},
        {"cookies": {"session": "hunter2; Path=/"}},
        {"proxy": "http://user:hunter2@proxy.example:3128"},
        {"proxy_login": "user:hunter2"},
        {"password": "hunter2"},
    ],
)
def test_an_error_never_quotes_what_may_be_a_secret(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidSite) as refused:
        Site.of("site.example", fields)
    assert "hunter2" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_stored_site_is_read_as_it_was_and_ignores_fields_of_later_releases(store: ObjectStore) -> None:
    site = Site.of(
        "Site.example:8080", {"schedule": " 0  3 * * 1 ", "jitter": "10m", "delay": "2", "exclude": ["/a*b$"]}
    )
    add_site(store, site)
    stored = read_site(store, "site.example:8080")
    assert stored is not None
    assert stored == site
    assert (site.schedule, site.jitter, site.delay) == ("0 3 * * 1", 600, 2)
    site = site.changed({"jitter": "0s", "delay": "0s"})
    assert (site.jitter, site.delay) == (0, 0)
    later = json.loads(site.to_json()) | {"colour": "red"}
    assert Site.from_json(json.dumps(later).encode()) == site
    for broken in (
        b"{",
        b"[]",
        json.dumps(later | {"version": 2}).encode(),
        json.dumps(later | {"delay": -1}).encode(),
    ):
        with pytest.raises(StoreError) as refused:
            Site.from_json(broken)
        assert refused.value.__cause__ is None, "the cause may quote a secret"


def test_an_invalid_site_in_the_store_does_not_hide_the_others(store: ObjectStore) -> None:
    for domain in ("a.example", "b.example"):
        add_site(store, Site.of(domain, {}))
    store.put("sites/c.example.json", Site.of("d.example", {}).to_json())
    store.put("sites/e.example.json", b"?")
    assert [site.domain for site in list_sites(store)] == ["a.example", "b.example"]


@pytest.mark.parametrize("data", [b"?", b"[]", b'{"at": "2026-11-22T12:00:00", "crawl_id": "c"}'])
def test_a_damaged_start_counts_from_its_time_and_does_not_stop_the_other_schedules(
    store: ObjectStore, data: bytes
) -> None:
    for domain in ("a.example", "b.example"):
        add_site(store, Site.of(domain, {"schedule": "1h", "created": NOON}))
    store.put("starts/a.example.json", data)
    written = store.stat("starts/a.example.json").modified
    assert read_start(store, "a.example") == Start(written, "")
    later = max(NOON, written) + timedelta(hours=1)
    assert [crawl.due for crawl in CrawlScheduler(store).due(later)] == [written + timedelta(hours=1), NOON]


def test_two_workers_that_meet_one_due_crawl_post_the_same_crawl(store: ObjectStore) -> None:
    add_site(store, Site.of("a.example", {"schedule": "1h", "created": NOON}))
    ids = [crawl.crawl_id for _ in range(2) for crawl in CrawlScheduler(store).due(NOON)]
    assert ids == ["a.example-20261122T120000Z"] * 2


def test_a_message_is_dropped_if_it_was_published_before_its_site_was_removed(store: ObjectStore) -> None:
    note_removed(store, "a.example", 1_000)
    times = ((999, 2_000), (1_000, 2_000), (None, 1_059), (None, 1_060))
    dropped = [is_removed(store, "a.example", published, now=now) for published, now in times]
    assert dropped == [True, False, True, False]
    assert not is_removed(store, "b.example", 999, now=2_000)
    assert site_message("index", domain="a.example").properties["timestamp"] >= int(time.time()) - 1


def test_the_jitter_delays_the_first_start_and_lengthens_no_interval() -> None:
    site = Site.of("a.example", {"schedule": "24h", "jitter": "2h", "created": NOON})
    first = site.next_start(None)
    assert first is not None
    assert NOON < first <= NOON + timedelta(hours=2)
    assert site.next_start(first) == first + timedelta(hours=24)


def test_a_schedule_gives_the_next_start_after_the_last_one() -> None:
    assert Schedule("6h").next_start("a.example", NOON) == NOON + timedelta(hours=6)
    assert Schedule("0 3 * * *").next_start("a.example", NOON) == datetime(2026, 11, 23, 3, tzinfo=UTC)
    assert Schedule("*/15 * * * *").next_start("a.example", NOON) == NOON + timedelta(minutes=15)
    assert Schedule("0 3 * * *").next_start("a.example", NOON - timedelta(days=9)) < NOON


@settings(max_examples=20)
@given(
    st.from_regex(r"[a-z]{1,8}\.example", fullmatch=True), st.integers(0, 3_600), st.sampled_from(["1h", "0 * * * *"])
)
def test_the_jitter_of_a_site_is_the_same_each_time_and_never_skips_a_start(
    domain: str, jitter: int, text: str
) -> None:
    schedule = Schedule(text, jitter)
    starts = [NOON]
    for _ in range(5):
        starts.append(schedule.next_start(domain, starts[-1]))
    steps = {later - earlier for earlier, later in itertools.pairwise(starts[1:])}
    assert steps == {timedelta(hours=1)}


def test_a_paused_site_and_one_without_a_schedule_have_no_next_start() -> None:
    site = Site.of("a.example", {"schedule": "1h"})
    assert site.next_start(None) == site.created
    assert site.next_start(NOON) == NOON + timedelta(hours=1)
    assert site.changed({"state": "paused"}).next_start(NOON) is None
    assert site.changed({"schedule": ""}).next_start(NOON) is None


def test_a_start_beyond_the_calendar_never_comes_and_does_not_hide_the_other_sites(
    run: Any, store: ObjectStore
) -> None:
    run("add", "a.example", "schedule=1d", "jitter=1d", "created=9999-12-31T23:59:59Z")
    run("add", "b.example", "schedule=1d")
    write_start(store, "b.example", Start(datetime.max.replace(tzinfo=UTC), "b"))
    listed = json.loads(run("list", "--json"))
    assert [(row["domain"], row["next_start"]) for row in listed] == [("a.example", None), ("b.example", None)]


PATTERN = st.text("ab/*", min_size=1, max_size=8).map(lambda text: f"/{text}")


@given(PATTERN, st.booleans(), st.text("ab/", max_size=12).map(lambda text: f"/{text}"))
def test_a_pattern_matches_as_the_regular_expression_of_its_definition(pattern: str, to_end: bool, path: str) -> None:
    expression = ".*".join(map(re.escape, pattern.split("*"))) + ("$" if to_end else "")
    rules = PathRules((pattern + "$" * to_end,))
    assert rules.allow(path) == bool(re.match(expression, path))
    assert PathRules((), rules.include).allow(path) != rules.allow(path)


def test_a_policy_takes_from_the_settings_what_a_site_leaves_open(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, host_delay=4.0, max_pages=9)
    policy = policy_of(Site.of("a.example", {"delay": 0, "concurrency": 3, "include": ["/docs/"]}), settings)
    assert (policy.settings.host_delay, policy.settings.host_concurrency, policy.settings.max_pages) == (0, 3, 9)
    assert policy.scope.contains("https://a.example/docs/x")
    assert not policy.scope.contains("https://a.example/x")
    assert policy.scope.contains("https://a.example/x", any_path=True)
    assert not policy.scope.contains("https://b.example/docs/", any_path=True)


def test_a_secret_goes_to_the_origins_of_the_start_urls_only(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets.json"
    secrets.write_text(json.dumps({"token": "Bearer hunter2", "login": "12345"}))
    settings = Settings(data_dir=tmp_path, site_secrets=str(secrets))
    fields = {"headers": {"Authorization": "token"}, "cookies": {"sid": "login"}, "scope": "suffix"}
    request = policy_of(Site.of("a.example", fields), settings).request
    assert headers_for("https://a.example/x", request) == {"Authorization": "Bearer hunter2", "Cookie": "sid=12345"}
    others = ("http://a.example/", "https://b.a.example/", "https://a.example:444/", "https://a.example.evil.example/")
    assert [headers_for(url, request) for url in others] == [{}, {}, {}, {}]
    assert "hunter2" not in repr(request)
    with pytest.raises(SecretMissing, match="SITE_SECRETS has no secret 'other'"):
        policy_of(Site.of("a.example", {"headers": {"X": "other"}}), settings)


@pytest.mark.parametrize("text", ["/missing/file", '{"a": 1}', "[]{", '{"a": "x\\r\\ny"}'])
def test_invalid_secrets_are_refused_at_start_without_their_values(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Settings(data_dir=tmp_path, site_secrets=text)
    assert "x\\r" not in str(refused.value)


def test_a_process_reads_a_changed_site_again_after_its_time(store: ObjectStore, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    kept, fresh = SitePolicies(store, settings), SitePolicies(store, settings, max_age=0)
    assert kept("a.example").settings.max_pages == fresh("a.example").settings.max_pages == settings.max_pages
    add_site(store, Site.of("a.example", {"max_pages": 5}))
    assert kept("a.example").settings.max_pages == settings.max_pages
    assert fresh("a.example").settings.max_pages == 5


def test_a_crawl_without_a_site_may_be_at_the_port_of_the_other_scheme(store: ObjectStore, tmp_path: Path) -> None:
    target = parse_crawl_url({"url": "http://a.example:443/"})
    assert SitePolicies(store, Settings(data_dir=tmp_path))(target.domain).scope.contains(target.url)


# The command


@pytest.fixture
def run(store: ObjectStore, tmp_path: Path) -> Any:
    def call(*arguments: str, exit_code: int = 0) -> str:
        result = CliRunner().invoke(command.cli, arguments)
        assert result.exit_code == exit_code, (result.output, result.exception)
        return str(result.exception) if isinstance(result.exception, InvalidSite) else result.stdout

    with as_process_with({"PERENNIAL_DATA_DIR": str(tmp_path), "STORE_URL": tmp_path.as_uri()}):
        yield call


def test_a_site_is_added_listed_shown_and_changed(run: Any) -> None:
    run("list", exit_code=1)
    assert json.loads(run("list", "--json", exit_code=1)) == []
    assert run("add", "https://Docs.example/", "schedule=6h", "exclude=/a/", "exclude=/b/") == "docs.example added\n"
    assert "is a site already" in run("add", "docs.example", exit_code=1)
    listed = json.loads(run("list", "--json"))
    assert [(row["domain"], row["schedule"], row["last_start"]) for row in listed] == [("docs.example", "6h", None)]
    assert (
        run("set", "docs.example", "delay=2", "exclude=")
        == "docs.example: delay None -> 2.0; exclude ['/a/', '/b/'] -> None\n"
    )
    shown = json.loads(run("show", "docs.example", "--json"))
    assert (shown["delay"], "exclude" in shown, shown["schedule"]) == (2, False, "6h")
    assert run("set", "docs.example", "delay=2") == "docs.example: nothing changes\n"
    assert "delay: Input should be" in run("set", "docs.example", "delay=soon", exit_code=1)
    assert "is no site" in run("set", "other.example", "delay=1", exit_code=1)


def test_a_damaged_site_is_written_again_by_adding_it(run: Any, store: ObjectStore) -> None:
    run("add", "a.example", "delay=1")
    store.put("sites/a.example.json", b"?")
    assert run("add", "a.example", "delay=2") == "a.example added\n"
    stored = read_site(store, "a.example")
    assert stored is not None
    assert stored.delay == 2
    assert "is a site already" in run("add", "a.example", "delay=3", exit_code=1)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (["delay=1", "delay.x=2"], "delay is no table: expected delay=VALUE"),
        (["exclude=/a", "exclude.b=c"], "exclude is no table"),
        (["headers=hunter2", "headers.A=y"], "headers: expected headers.NAME=SECRET"),
        (["domain=other.example"], "domain: a site keeps its domain"),
        (["nothing.x=1"], "nothing"),
    ],
)
def test_a_field_in_the_wrong_form_is_refused(run: Any, values: list[str], text: str) -> None:
    run("add", "a.example")
    for act in ("set", "add"):
        refusal = run(act, "a.example", *values, exit_code=1)
        assert text in refusal
        assert "hunter2" not in refusal


def test_names_of_a_table_are_set_and_removed_one_by_one(run: Any, store: ObjectStore) -> None:
    def headers(*values: str) -> dict[str, str]:
        run("set", "a.example", *values)
        stored = read_site(store, "a.example")
        assert stored is not None
        return stored.headers

    run("add", "a.example", "headers.A=one", "headers.B=two")
    assert headers("headers.C=three") == {"A": "one", "B": "two", "C": "three"}
    assert headers("headers.B=") == {"A": "one", "C": "three"}
    assert headers("headers=", "headers.D=four") == {"D": "four"}
    assert headers("headers=") == {}


def test_start_urls_outside_of_the_scope_are_refused(run: Any, store: ObjectStore, tmp_path: Path) -> None:
    url = "start_urls=https://en.a.example/"
    assert "not in the scope 'exact'" in run("add", "a.example", url, exit_code=1)
    run("add", "a.example", url, "scope=suffix")
    assert "not in the scope 'exact'" in run("set", "a.example", "scope=", exit_code=1)
    file = tmp_path / "sites.toml"
    file.write_text('[[sites]]\ndomain = "a.example"\nstart_urls = ["https://en.a.example/"]\n')
    assert "not in the scope 'exact'" in run("apply", str(file), exit_code=1)
    stored = read_site(store, "a.example")
    assert stored is not None
    assert stored.scope == "suffix"


def test_a_file_of_sites_is_applied_once_and_keeps_what_commands_changed(
    run: Any, store: ObjectStore, tmp_path: Path
) -> None:
    run("add", "a.example", "delay=5", "max_depth=3")
    run("add", "c.example")
    update_site(store, "a.example", lambda site: site.with_blocked("https://a.example/x", blocked=True))  # type: ignore[union-attr]
    file = tmp_path / "sites.toml"
    file.write_text(
        '[[sites]]\ndomain = "A.example"\ndelay = 1\n[[sites]]\ndomain = "b.example"\nschedule = "1d"\n',
        encoding="utf-8-sig",  # As some editors write it.
    )
    planned = run("apply", str(file), "--dry-run")
    assert planned.splitlines() == [
        "would change a.example: delay: 5.0 -> 1.0; max_depth: 3 -> None",
        "would add b.example",
        "not in the file: c.example",
        "2 sites declared, 2 differ",
    ]
    assert [site.domain for site in list_sites(store)] == ["a.example", "c.example"]
    run("apply", str(file))
    assert json.loads(run("apply", str(file), "--json")) == []
    pruned = json.loads(run("apply", str(file), "--json", "--dry-run", "--prune"))
    assert pruned == [{"act": "remove", "domain": "c.example", "fields": {}}]
    changed = read_site(store, "a.example")
    assert changed is not None
    assert (changed.delay, changed.max_depth, changed.blocked) == (1, None, ("https://a.example/x",))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[[sites]]\ndelay = 1", "site 1: domain:"),
        (
            '[[sites]]\ndomain = "a.example"\n[[sites]]\ndomain = "A.example"',
            "site 2: domain: a.example is declared twice",
        ),
        ('[[sites]]\ndomain = "a.example"\ndelay = -1', "a.example: delay: "),
        ('[[site]]\ndomain = "a.example"', r"expected tables \[\[sites\]\] only, found site"),
        ("[[sites]", "sites.toml: "),
        ("[[sites]]\ndomain = 5", "site 1: domain: "),
        ('[[sites]]\ndomain = "*.a.example"', "domain: it cannot have a wildcard"),
    ],
)
def test_an_invalid_file_of_sites_changes_nothing(
    run: Any, store: ObjectStore, tmp_path: Path, text: str, reason: str
) -> None:
    file = tmp_path / "sites.toml"
    file.write_text(text)
    assert re.search(reason, run("apply", str(file), exit_code=1))
    assert not list(list_sites(store))


def test_names_are_those_of_the_site_objects_that_have_one(tmp_path: Path) -> None:
    store = folder_store(tmp_path / "store")
    add_site(store, Site(domain="docs.example", name="The Manuals"))
    add_site(store, Site(domain="other.example"))
    names = SiteNames(store)
    names.read()
    assert names() == {"docs.example": "The Manuals"}
