"""README, ARCHITECTURE and the others, held to the code that they describe."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from app.broker.policies.delay_queues import DelayQueues
from app.broker.policies.drop import DropAll
from app.broker.policies.fixed_ttl import FixedTtl
from app.broker.policies.waiting import POSTPONE_LADDER_MS
from app.broker.policies.x_death import XDeath
from app.cli.topology import search_picture, site_picture
from app.crawl.target import parse, parse_domain
from app.envelopes import decode, route_of
from app.timers.arguments import callback_of, timeout_of
from app.topology.policies import site_policy, subscriber_policy
from app.topology.queues import orchestrator_queues, searcher_queue
from config.routes import (
    ORCHESTRATOR,
    POLICY_OF_QUEUE,
    REGISTER_AGAIN,
    REQUEST_TYPES,
    ROUTES,
    SEARCHER_TYPES,
    SUBSCRIPTIONS,
)
from config.settings import ROOT, Settings
from tests.support import generated
from tests.support.documents import blocks, matches, read, table

pytestmark = pytest.mark.unit

#: Every policy there is.
POLICIES = (DelayQueues, FixedTtl, XDeath, DropAll)

DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
README, ARCHITECTURE = read("README.md"), read("ARCHITECTURE.md")


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub makes of the headings."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


UPDATE = "out of date; `python -m tests.support.generated` writes it anew"


def test_picture_settings_and_commands_in_the_readme_are_those_of_the_code() -> None:
    assert generated.readme(README) == README, UPDATE


def test_the_folders_in_the_architecture_are_those_of_the_code_with_their_own_first_lines() -> None:
    assert generated.architecture(ARCHITECTURE) == ARCHITECTURE, UPDATE


def test_the_generated_parts_hold_every_command_setting_folder_and_queue() -> None:
    assert {"perennial dead replay", "perennial search", "perennial topology mermaid"} <= set(generated.commands())
    told = {row[0].strip("`") for row in table(README, "## Commands")}
    assert told == set(generated.commands())
    assert len(table(README, "## Settings")) == len(Settings.model_fields)
    packages = {f"{path.parent.relative_to(ROOT)}/" for path in generated.modules() if path.stem == "__init__"}
    assert {f"`{package}`" for package in packages} <= {row[0] for row in table(ARCHITECTURE, "## Where things are")}
    assert len(blocks(README, "mermaid")) == len(generated.pictures())


def test_every_option_in_the_readme_is_one_of_the_command_it_stands_with() -> None:
    known = generated.commands()
    lines = re.findall(r"^\$ (perennial .+)$", README, re.MULTILINE)
    assert len(lines) > 10
    for line in lines:
        name = max((name for name in known if f"{line} ".startswith(f"{name} ")), key=len)
        assert set(re.findall(r"(?<= )--[a-z]+", line)) <= generated.options(known[name]), line


@pytest.mark.parametrize("path", generated.modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_opens_with_one_line_that_says_what_it_is(path: Path) -> None:
    first, *rest = generated.caption(path)
    assert 10 <= len(first) <= 130
    assert first.endswith(".")
    assert not rest or not rest[0]


def test_the_picture_has_every_work_queue_with_its_process() -> None:
    picture = site_picture(Settings())
    for queue in POLICY_OF_QUEUE:
        process = "packer" if queue == "site.pack" else "worker"
        assert re.search(rf'\[\["{queue}"\]\] --> {process}$', picture, re.MULTILINE)
    assert 'waiting -.->|"time is up"| site' in picture


def test_the_picture_of_searching_has_every_queue_of_it_and_every_message_type() -> None:
    picture = search_picture(Settings())
    queues = [
        *orchestrator_queues(Settings()),
        *subscriber_policy(ORCHESTRATOR, Settings()).queues(),
        searcher_queue("ID"),
    ]
    assert {f'[["{queue.name}"]]' for queue in queues} <= set(re.findall(r"\[\[\S+?\]\]", picture))
    types = {*(route.type for route in SUBSCRIPTIONS), *REQUEST_TYPES, *SEARCHER_TYPES, REGISTER_AGAIN}
    assert types <= set(re.findall(r"\w+", picture))


def test_the_message_table_is_that_of_the_routes() -> None:
    told = [[cell.strip("`") for cell in row[:3]] for row in table(README, "## Messages")]
    assert told == [[route.type, route.task, route.queue] for route in ROUTES]


@pytest.mark.parametrize("row", table(README, "## Messages"), ids=lambda row: str(row[0]).strip("`"))
def test_the_example_of_each_message_is_understood(row: list[str]) -> None:
    message = decode(row[4].strip("`").encode())
    assert json.dumps(message) == row[4].strip("`")
    route = route_of(message)
    assert f"`{route.type}`" == row[0]
    if route.type in ("index+crawl", "index", "crawl"):
        assert parse(message, scope="exact", max_length=2_000).domain == "site.gov"
    elif route.type != "tick":
        assert parse_domain(message, max_length=2_000) == "site.gov"
    if route.type == "start_timer":
        callback = callback_of(message, "site.gov")
        assert callback is not None
        assert (timeout_of(message, default=1), callback.queue) == (300, "site.pack")


def test_the_retry_table_has_the_policies_there_are_with_their_defaults() -> None:
    rows = {row[0]: row for row in table(README, "## When something fails")}
    assert {name.strip("`") for name in rows if name.startswith("`")} == {policy.name for policy in POLICIES}
    *first, last = [f"{delay / 1_000:g}" for delay in site_policy(Settings()).delays_ms()]
    assert f"{', '.join(first)} and {last} s" in rows["`delay_queues`"][1]
    ttl, lasting = FixedTtl("p"), XDeath("q")
    assert f"from {ttl.retry_max} down to -1" in rows["`fixed_ttl`"][1]
    assert f"{ttl.ttl_ms // 3_600_000} hours" in rows["`fixed_ttl`"][2]
    assert f"{lasting.retry_max} retries" in rows["`x_death`"][1]
    assert f"`<queue>.retry`, {lasting.retry_after_ms // 1_000} s" in rows["`x_death`"][2]
    assert f"{POSTPONE_LADDER_MS[0]} ms to {POSTPONE_LADDER_MS[-1] // 1_000} s" in rows["postponement"][2]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_relative_link_leads_to_a_file_or_a_heading(name: str) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", read(name))
    for link in links:
        if not link.startswith(("http://", "https://")):
            path, _, anchor = link.partition("#")
            assert (ROOT / path).exists(), f"{name}: {link}"
            assert not anchor or anchor in anchors(read(path or name)), f"{name}: {link}"


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_file_that_is_named_is_there(name: str) -> None:
    named = re.findall(r"`((?:app|config|tasks|tests|benchmarks)/[\w./]*)`", read(name))
    missing = [path for path in named if not (ROOT / path).exists()]
    assert not missing
    assert name == "README.md" or len(named) >= 3


def test_the_make_targets_of_the_readme_are_those_of_make_help() -> None:
    told = re.findall(r"^  make ([\w-]+) ", README, re.MULTILINE)
    assert told == re.findall(r"^([\w-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_pictures_are_small_enough_to_be_loaded_by_everybody() -> None:
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    assert pictures
    assert all((ROOT / picture).stat().st_size < 300_000 for picture in pictures)


def test_no_document_shouts() -> None:
    for name in DOCUMENTS:
        prose = re.sub(r"^```.*?^```$|`[^`]*`|!\[|<!--.*?-->", "", read(name), flags=re.MULTILINE | re.DOTALL)
        assert "!" not in prose, name


def test_an_ellipsis_stands_for_some_text_or_some_lines() -> None:
    assert matches("a … c\n…\nlast", "a b c\nx\ny\nlast")
    assert matches("first\n…", "first")
    assert not matches("a … c", "a b d")
    assert not matches("first", "first\nsecond")
