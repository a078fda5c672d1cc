"""The documents, compared with the code that they describe."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest

from app.broker.policies.delay_queues import DelayQueues
from app.broker.policies.delays import POSTPONE_LADDER_MS
from app.broker.policies.drop import DropAll
from app.broker.policies.fixed_ttl import FixedTtl
from app.broker.policies.x_death import XDeath
from app.counters import COUNTERS
from app.crawl.urls import parse_crawl_url, parse_message_domain
from app.messages.envelopes import decode_envelope, route_of
from app.processes.procfile import procfile
from app.timers.timers import callback_of, timeout_of
from app.topology.retry_policies import site_policy
from app.web.monitoring import Metrics
from config.routes import (
    HEARTBEAT,
    POLICY_OF_QUEUE,
    REGISTER_AGAIN,
    REQUEST_TYPES,
    ROUTES,
    SEARCHER_TYPES,
    SUBSCRIPTIONS,
)
from config.settings import ROOT, Settings
from tests.support import generated
from tests.support.documents import blocks, matches, metrics, pages, read, table
from tests.support.setting_tables import sections

pytestmark = pytest.mark.unit

#: Every retry policy.
POLICIES = (DelayQueues, FixedTtl, XDeath, DropAll)
#: The cells of the message table.
MESSAGES = table(read("docs/reference/messages.md"), "## Messages of the site group")


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub makes of the headings."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", generated.DOCUMENTS)
def test_generated_tables_are_up_to_date(name: str) -> None:
    text = read(name)
    assert generated.DOCUMENTS[name](text) == text, "`python -m tests.support.generated` writes it again"


def test_the_generated_parts_have_every_command_setting_and_folder() -> None:
    usages = [row[0].strip("`") for row in table(read("docs/reference/commands.md"), "## All commands")]
    rows = {re.sub(r" [^a-z-]*[A-Z].*", "", usage) for usage in usages}
    assert {"perennial dead replay", "perennial search", "perennial topology show"} <= rows
    assert rows == set(generated.commands())
    page = read("docs/reference/settings.md")
    listed = [row for title in sections() for row in table(page, f"## {title}")]
    assert len(listed) == len(Settings.model_fields)
    packages = {f"`{path.parent.relative_to(ROOT)}/`" for path in generated.modules() if path.stem == "__init__"}
    assert packages == {row[0] for row in table(read("ARCHITECTURE.md"), "## Where things are")}
    processes = [row[0] for row in table(read("ARCHITECTURE.md"), "## Processes")]
    assert re.findall("`(.*?)`", " ".join(processes)) == list(procfile())
    page = read("docs/reference/http-api.md")
    assert {"`search`, `suggest`", "`search`"} < {row[1] for row in table(page, "## Parameters")}


def test_every_option_in_the_documents_is_one_of_its_command() -> None:
    known_commands = generated.commands()
    text = "\n".join(read(name) for name in pages() if name != "CHANGELOG.md")
    lines = re.findall(r"(?:^\$ |`)(perennial [a-z][^`\n]+)", text, re.MULTILINE)
    assert len(lines) > 20
    for line in lines:
        names = [name for name in known_commands if f"{line} ".startswith(f"{name} ")]
        groups = [name for name in known_commands if name.startswith(f"{line} ")]
        assert names or groups, line
        if names:
            command = known_commands[max(names, key=len)]
            assert set(re.findall(r"(?<= )--[a-z]+(?:-[a-z]+)*", line)) <= generated.options(command) | {"--help"}, line


def test_every_module_opens_with_one_line_about_its_content() -> None:
    captions = {path: generated.caption(path) for path in generated.modules()}
    assert len(captions) > 300
    for path, (first, *others) in captions.items():
        assert 10 <= len(first) <= 130, path
        assert first.endswith("."), path
        assert not others or not others[0], path


def test_the_pictures_have_the_process_of_each_work_queue_and_every_type_of_message_of_the_search_cluster() -> None:
    # What is declared is compared in test_topology_check.py.
    site, search, _ = (each.text for each in blocks(read("docs/reference/topology.md"), "mermaid"))
    consumers = {queue: "packer" if queue == "site.pack" else "worker" for queue in POLICY_OF_QUEUE}
    assert dict(re.findall(r'\[\["(site\.\w+)"\]\] --> (\w+)$', site, re.MULTILINE)) == consumers
    types = {*(route.type for route in SUBSCRIPTIONS), HEARTBEAT, *REQUEST_TYPES, *SEARCHER_TYPES, REGISTER_AGAIN}
    assert types <= set(re.findall(r"\w+", search))


def test_the_message_table_has_the_routes() -> None:
    rows = [[cell.strip("`") for cell in row[:2]] for row in MESSAGES]
    assert rows == [[route.type, route.queue] for route in ROUTES]
    tasks = {route.type: f"site.{route.type}" for route in ROUTES} | {"index+crawl": "site.index_and_crawl"}
    assert tasks == {route.type: route.task for route in ROUTES}


def test_the_table_of_the_search_cluster_has_every_type() -> None:
    heading = "## Requests and events of the search cluster"
    types = {name for row in table(read("docs/reference/messages.md"), heading) for name in re.findall(r"\w+", row[0])}
    assert types == {
        *(route.type for route in SUBSCRIPTIONS),
        HEARTBEAT,
        *REQUEST_TYPES,
        *SEARCHER_TYPES,
        REGISTER_AGAIN,
    }


@pytest.mark.parametrize("row", MESSAGES, ids=lambda row: str(row[0]).strip("`"))
def test_the_example_of_each_message_is_valid(row: list[str]) -> None:
    message = decode_envelope(row[3].strip("`").encode())
    assert json.dumps(message) == row[3].strip("`")
    route = route_of(message)
    assert f"`{route.type}`" == row[0]
    if route.type in ("index+crawl", "index", "crawl"):
        assert parse_crawl_url(message).domain == "site.gov"
    elif route.type not in ("tick", "notify", "watch", "tidy"):
        assert parse_message_domain(message) == "site.gov"
    if route.type == "start_timer":
        callback = callback_of(message, "site.gov")
        assert callback is not None
        assert (timeout_of(message, default=1), callback.queue) == (300, "site.pack")


def test_the_table_of_retry_policies_has_their_defaults() -> None:
    rows = {row[0]: row for row in table(read("docs/explanation/retry-policies.md"), "## The policies")}
    assert {name.strip("`") for name in rows if name.startswith("`")} == {policy.name for policy in POLICIES}
    *first, last = [f"{delay / 1_000:g}" for delay in site_policy(Settings()).delays_ms()]
    assert f"{', '.join(first)} and {last} s" in rows["`delay_queues`"][1]
    ttl, client = FixedTtl("p"), XDeath("q")
    assert f"from {ttl.retry_max} down to -1" in rows["`fixed_ttl`"][1]
    assert f"{ttl.ttl_ms // 3_600_000} hours" in rows["`fixed_ttl`"][2]
    assert f"{client.retry_max} retries" in rows["`x_death`"][1]
    assert f"`<queue>.retry`, {client.retry_after_ms // 1_000} s" in rows["`x_death`"][2]
    assert f"{POSTPONE_LADDER_MS[0]} ms to {POSTPONE_LADDER_MS[-1] // 1_000} s" in rows["postponement"][2]


def test_the_reference_has_every_header_of_our_own() -> None:
    texts = {text for path in generated.modules() for text in _texts(path)}
    pattern = r"perennial-[a-z-]*[a-z]|mb-[a-z]+|retry-(?:timeout-ms|max)|current-iteration|retry_info|artwork-event"
    in_code = {text for text in texts if re.fullmatch(pattern, text)}
    on_page = set(re.findall(r"^\| `([\w-]+)`", read("docs/reference/headers.md"), re.MULTILINE))
    assert len(in_code) > 15
    assert in_code == on_page - {"x-death", "x-delivery-count"}


def test_the_reference_has_every_metric() -> None:
    own = {family.name for family in Metrics().registry.collect() if family.name.startswith("perennial_")}
    texts = _texts(ROOT / "app/web/monitoring.py")
    on_demand = {text for text in texts if re.fullmatch(r"perennial_[a-z_]*[a-z]", text)}
    rows = [row for kind in metrics().values() for row in kind]
    assert {row[0].strip("`") for row in rows} == own | on_demand | {counter.name for counter in COUNTERS}
    labels = {row[0].strip("`"): tuple(re.findall(r"`(\w+)`", row[1])) for row in rows}
    assert all(labels[counter.name] == counter.labels for counter in COUNTERS)


def test_each_explained_log_line_is_one_of_the_code() -> None:
    in_code = "\n".join(text for path in generated.modules() for text in _texts(path))
    rows = table(read("docs/troubleshooting.md"), "## Log lines")
    assert len(rows) > 10
    for line in (row[0].strip("`") for row in rows):
        parts = [part.strip(": ") for part in line.split("…")]
        missing = [part for part in parts if len(part) > 2 and part not in in_code]
        assert not missing, f"docs/troubleshooting.md: {line}"


def test_the_reference_has_every_kind_of_redis_key() -> None:
    # A mark that something was done a short time ago is named where it is read.
    key = r'(?:f"\{PREFIX\}|is_due\(")([a-z]+)'
    in_code = {kind for path in generated.modules() for kind in re.findall(key, path.read_text())}
    page = read("docs/reference/redis-keys.md")
    assert set(re.findall(r"(?:^\| |, )`([a-z]+)", page, re.MULTILINE)) == in_code


def test_every_relative_link_leads_to_a_file_or_a_heading() -> None:
    links = [(name, link) for name in pages() for link in re.findall(r"\]\(([^)\s]+)\)", read(name))]
    for name, link in links:
        if not link.startswith(("http://", "https://")):
            path, _, anchor = link.partition("#")
            target = (ROOT / name).parent / path if path else ROOT / name
            assert target.exists(), f"{name}: {link}"
            assert not anchor or anchor in anchors(target.read_text()), f"{name}: {link}"


def test_every_file_in_a_document_exists() -> None:
    pattern = r"`((?:app|config|tasks|tests|benchmarks|docs|demo)/[\w./-]*)`"
    named = [(name, path) for name in pages() if name != "CHANGELOG.md" for path in re.findall(pattern, read(name))]
    assert [(name, path) for name, path in named if not (ROOT / path).exists()] == []


def test_a_decision_record_is_short_and_has_its_three_parts() -> None:
    records = [name for name in pages() if name.startswith("docs/decisions/") and not name.endswith("/index.md")]
    assert len(records) >= 10
    for name in records:
        lines = read(name).splitlines()
        assert [line for line in lines if line.startswith("#")][1:] == ["## Context", "## Decision", "## Consequences"]
        assert len(lines) < 25, name


def test_readme_and_architecture_stay_short() -> None:
    assert len(read("README.md").splitlines()) <= 150
    assert len(read("ARCHITECTURE.md").encode()) < 10_000


def test_pictures_are_small_enough_to_load_quickly() -> None:
    pictures = [ROOT / picture for picture in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", read("README.md"))]
    assert pictures
    assert all(picture.stat().st_size < 300_000 for picture in [*pictures, *(ROOT / "docs/images").iterdir()])


def test_no_document_has_an_exclamation_mark() -> None:
    texts = {
        name: re.sub(r"^```.*?^```$|`[^`]*`|!\[|<!--.*?-->", "", read(name), flags=re.MULTILINE | re.DOTALL)
        for name in pages()
    }
    assert [name for name, text in texts.items() if "!" in text] == []


def test_an_ellipsis_matches_some_text_or_some_lines() -> None:
    assert matches("a … c\n…\nlast", "a b c\nx\ny\nlast")
    assert matches("first\n…", "first")
    assert not matches("a … c", "a b d")
    assert not matches("first", "first\nsecond")


@cache
def _texts(path: Path) -> list[str]:
    """Return the text constants of a module."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
