"""The README's commands and Python, run in their order on a running system.

A `console` block is run line by line: what follows `$ `, in `sh`, as the page stands. Blocks after a comment
`<!-- not run: reason -->` are not, and only the commands named here may stand in them. A local site takes the place of
`https://site.example/`, and this test's broker that of the guest's.
"""

from __future__ import annotations

import doctest
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from config.settings import ROOT, Settings
from tests.servers.site import Site, failure, page
from tests.support.documents import Block, Command, blocks, commands, matches, read
from tests.support.fleet import fleet, ready
from tests.support.system import System, running_system
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance

README = read("README.md")

#: What makes an environment, a demo, services or containers of its own has tests of its own.
NOT_RUN = ("make ", "docker compose ", "perennial services ", "perennial up", "perennial down")
#: These look without changing anything: they are run until work that was asked for before is done.
AWAITED = tuple(
    f"perennial {name}" for name in ("status ", "search ", "searchers", "explain ", "dead list", "dead show ")
)
#: What stands in the page for things that have another name in every run.
DEAD_ID = "1d6a0f0e-6c5a-4d0a-9c0b-2f6b7a1f0c11"
GUEST = '"127.0.0.1:5672", userid="guest", password="guest", virtual_host="/"'


@pytest.fixture
def site() -> Iterator[Site]:
    """What the page's example crawls: a tree in every page, one of them broken."""
    pages = {f"/{name}": page(name.title(), f"All about {name} trees", links=["/"]) for name in ("amber", "birch")}
    home = page("Home", "Welcome", links=["/amber", "/birch", "/elm"])
    with Site({"/": home, "/elm": failure(500), **pages}) as site:
        yield site


@pytest.fixture
def system(environment: dict[str, str], settings: Settings, tmp_path: Path) -> Iterator[System]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    fast = {"RETRY_TIMEOUT_MS": "100", "RETRY_MAX": "2", "PATH": path, "COLUMNS": "200"}
    here = {**environment, **fast, "REPLICAS": "1"}
    with fleet(here, tmp_path / "fleet") as searching, running_system(here, settings, tmp_path) as system:
        ready(searching.orchestrator(), searching.searcher())
        yield system


def test_the_readme_does_what_it_says(system: System, site: Site) -> None:
    for block in blocks(README, "console", "python"):
        if block.kind == "python":
            run_python(block, system, site)
        elif block.runs:
            for command in commands(block):
                run_command(command, system, site)


def test_only_commands_that_have_tests_of_their_own_are_not_run() -> None:
    skipped = [command.line for block in blocks(README, "console") if not block.runs for command in commands(block)]
    assert all(line.startswith(NOT_RUN) for line in skipped), skipped
    assert len([block for block in blocks(README, "console") if block.runs]) >= 4
    assert not blocks(README, "sh", "bash", "shell"), "a console block shows what is printed as well"


def run_command(command: Command, system: System, site: Site) -> None:
    """Run a line as the page has it; it succeeds and prints what is shown."""
    if command.line.startswith("perennial dead replay"):
        site.set("/elm", page("Elm", "All about elm trees", links=["/"]))
    expected = command.output
    if not command.line.startswith(AWAITED):
        printed = sh(command.line, system, site)
        assert matches(expected, printed), f"{command.line}\nprinted:\n{printed}\nexpected:\n{expected}"
        return
    eventually(
        lambda: matches(expected, sh(command.line, system, site)),
        f"{command.line}\nexpected:\n{expected}\nprinted:\n{sh(command.line, system, site)}",
        every=0.2,
    )


def sh(line: str, system: System, site: Site) -> str:
    """Return what a line prints, told of site.example; fails where its exit status is not 0."""
    line = line.replace("https://site.example/", site.at("/")).replace("site.example", site.domain)
    if DEAD_ID in line:
        line = line.replace(DEAD_ID, dead_ids(system)[0])
    ran = subprocess.run(
        ["sh", "-c", line], cwd=ROOT, env={**os.environ, **system.environment}, capture_output=True, text=True
    )
    if line.startswith("perennial search") and ran.returncode == 1:
        return ran.stderr  # Not packed or not placed yet.
    assert ran.returncode == 0, f"{line}: exit {ran.returncode}\n{ran.stdout}{ran.stderr}"
    return ran.stdout.replace(site.at("/"), "https://site.example/").replace(site.domain, "site.example")


def dead_ids(system: System) -> list[str]:
    """Return the ids in the dead set, oldest first."""
    command = [sys.executable, "-m", "app.cli.main", "dead", "list", "--json"]
    ran = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **system.environment}, capture_output=True, text=True, check=True
    )
    return [letter["id"] for letter in json.loads(ran.stdout)]


def run_python(block: Block, system: System, site: Site) -> None:
    """Run a session with `>>>` as a doctest, any other block as a program."""
    broker = urlsplit(system.settings.broker)
    where = (
        f'"127.0.0.1:{broker.port}", userid="{broker.username}", password="{broker.password}", '
        f'virtual_host="{broker.path.removeprefix("/")}"'
    )
    text = block.text.replace(GUEST, where).replace("https://site.example/", site.at("/"))
    text = text.replace("site.example", site.domain).replace("…", "...")
    program = text if ">>>" not in text else _AS_DOCTEST.format(text=text, flags=doctest.ELLIPSIS)
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, **system.environment},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


_AS_DOCTEST = """
import doctest, sys
test = doctest.DocTestParser().get_doctest({text!r}, {{}}, "README", "README.md", 0)
sys.exit(bool(doctest.DocTestRunner(optionflags={flags}).run(test).failed))
"""
