"""The commands and Python examples of the documents, run in their order on one running system.

A `console` block is run line by line: the text after `$ `, in `sh`, as the page has it. A comment before a block can
change that. `not run: reason` is for commands that have tests of their own, or whose page another test follows.
`terminal: name` is for a command in the background. `stop: name` ends that command first. `repair: path` lets a page of
the site succeed first.

A local site takes the place of `https://site.example/`, and this test's broker that of the guest's.
"""

from __future__ import annotations

import doctest
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from config.settings import ROOT, Settings
from tests.servers.site import Site, failure, page
from tests.support.command import perennial
from tests.support.documents import Block, Command, blocks, commands, matches, pages, read
from tests.support.fleet import fleet, ready
from tests.support.programs import program
from tests.support.system import System, running_system
from tests.support.waiting import eventually
from tests.support.web import free_port, web_process

# It runs every command of every page: minutes on a busy machine.
pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

#: Documents that rely on what the ones before them did; the others follow.
IN_ORDER = ("docs/tutorial.md", "README.md", "docs/guides/monitor.md", "docs/guides/dead-sets.md")

#: Commands that make an environment, a demo, services or containers of their own have tests of their own.
NOT_RUN = (
    *("make ", "docker compose ", "export "),
    *("perennial services ", "perennial up", "perennial down"),
    *("perennial topology apply", "perennial search-report "),
    *("kubectl ", "cat /etc/ssl/", "pip install ", "python3 -m venv ~/", "~/perennial/bin/", "set -a; ", "systemctl "),
)
#: These read without changing anything: they are repeated until the work that was requested before is done.
REPEATED = (
    *("perennial status ", "perennial search ", "perennial searchers", "perennial explain "),
    *("perennial dead list", "perennial dead show ", "curl "),
)
#: Seconds to repeat them: a page that a request stored after it was blocked is deleted 40 seconds later.
_LONGEST = 60.0
#: Values of the pages that differ in every run.
DEAD_ID = "1d6a0f0e-6c5a-4d0a-9c0b-2f6b7a1f0c11"
GUEST = '"127.0.0.1:5672", userid="guest", password="guest", virtual_host="/"'


class Reader:
    """Follows the documents: runs their commands as a user would, each name of a page replaced by that of the test."""

    def __init__(self, system: System, site: Site, folder: Path, *, web_port: int) -> None:
        self._system = system
        self._site = site
        self._folder = folder
        self._terminals: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = {**os.environ, **system.environment}
        #: Text of the pages -> text of this test.
        self._names = {
            "https://site.example/": site.at("/"),
            "site.example": site.domain,
            "127.0.0.1:8800": f"127.0.0.1:{free_port()}",
            "127.0.0.1:8000": f"127.0.0.1:{web_port}",
        }
        self._names["server 8800 "] = f"server {self._names['127.0.0.1:8800'].partition(':')[2]} "

    def follow(self, block: Block) -> None:
        """Do what a block and the comment before it say."""
        act, _, name = block.note.partition(": ")
        if act == "stop":
            self.stop(name)
        elif act == "repair":
            eventually(lambda: not self._system.progress(self._site.domain).open, "the site's messages are complete")
            self._site.set(name, page("Elm", "All about elm trees", links=["/"]))
        if not block.runs:
            return
        if block.kind == "python":
            self._run_python(block)
        elif act == "terminal":
            self._start(name, next(commands(block)).line)
        else:
            for command in commands(block):
                self._run(command)

    def stop(self, name: str) -> None:
        """End the command of a terminal."""
        process = self._terminals.pop(name)
        process.kill()
        process.wait()

    def close(self) -> None:
        """End the commands of all terminals."""
        for name in list(self._terminals):
            self.stop(name)

    def _start(self, name: str, line: str) -> None:
        port = int(self._names["127.0.0.1:8800"].partition(":")[2])
        command = ["sh", "-c", f"exec {self._ours(line)}"]
        self._terminals[name] = subprocess.Popen(
            command, cwd=self._folder, env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        eventually(lambda: accepts(port), f"{line}: port {port} accepts connections")

    def _run(self, command: Command) -> None:
        """Run a line; it succeeds and prints the lines below it."""
        printed = ""

        def done() -> bool:
            nonlocal printed
            printed = self._sh(command.line)
            return matches(command.output, printed)

        if command.line.startswith(REPEATED):
            try:
                eventually(done, command.line, seconds=_LONGEST, every=0.2)
            except AssertionError as error:
                raise AssertionError(f"{command.line}\nprinted:\n{printed}\nexpected:\n{command.output}") from error
        else:
            assert done(), f"{command.line}\nprinted:\n{printed}\nexpected:\n{command.output}"

    def _sh(self, line: str) -> str:
        """Return what a line prints, with the names of the page; fail unless its exit status is 0."""
        if DEAD_ID in line:
            line = line.replace(DEAD_ID, self._dead_ids()[0])
        ran = self._ran(self._ours(line))
        if ran.returncode == 1 and line.startswith(("perennial search", "perennial searchers")):
            return ran.stderr  # The site is not packed or not placed yet.
        assert ran.returncode == 0, f"{line}: exit {ran.returncode}\n{ran.stdout}{ran.stderr}"
        printed = ran.stdout
        for theirs, ours in self._names.items():
            printed = printed.replace(ours, theirs)
        return printed

    def _ran(self, line: str) -> subprocess.CompletedProcess[str]:
        """Run a line in `sh`, or without one where it is one command of `perennial` alone."""
        words = shlex.split(line, comments=True)
        if words[0] == "perennial" and not set("|<>&;$`*") & set(line):
            return perennial(self._environment, *words[1:], folder=self._folder)
        command = ["sh", "-c", line]
        return subprocess.run(command, cwd=self._folder, env=self._environment, capture_output=True, text=True)

    def _ours(self, text: str) -> str:
        for theirs, ours in self._names.items():
            text = text.replace(theirs, ours)
        return text

    def _dead_ids(self) -> list[str]:
        """Return the ids in the dead set, oldest first; wait until there is one."""
        ran = perennial(self._environment, "dead", "list", "--json")
        return [letter["id"] for letter in json.loads(ran.stdout)]

    def _run_python(self, block: Block) -> None:
        """Run a session with `>>>` as a doctest, any other block as a program."""
        broker = urlsplit(self._system.settings.broker)
        login = f'userid="{broker.username}", password="{broker.password}", virtual_host="{broker.path.lstrip("/")}"'
        own = f'"127.0.0.1:{broker.port}", {login}'
        text = self._ours(block.text.replace(GUEST, own)).replace("…", "...")
        program = text if ">>>" not in text else _AS_DOCTEST.format(text=text, flags=doctest.ELLIPSIS)
        command = [sys.executable, "-c", program]
        ran = subprocess.run(command, cwd=ROOT, env=self._environment, capture_output=True, text=True)
        assert ran.returncode == 0, f"{block.text}\n{ran.stdout}{ran.stderr}"


_AS_DOCTEST = """
import doctest, sys
test = doctest.DocTestParser().get_doctest({text!r}, {{}}, "page", "page", 0)
sys.exit(bool(doctest.DocTestRunner(optionflags={flags}).run(test).failed))
"""


@pytest.fixture
def site() -> Iterator[Site]:
    """Yield the site of the examples: a tree in every page, one of them broken."""
    trees = {f"/{name}": page(name.title(), f"All about {name} trees", links=["/"]) for name in ("amber", "birch")}
    home = page("Home", "Welcome", links=["/amber", "/birch", "/elm"])
    with Site({"/": home, "/elm": failure(500), **trees}) as site:
        yield site


@pytest.fixture
def reader(environment: dict[str, str], settings: Settings, tmp_path: Path, site: Site) -> Iterator[Reader]:
    """Yield a reader with a running system: worker, beat, orchestrator, searcher and web process."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    program("curl", "curl")
    port = free_port()
    changed = {"RETRY_TIMEOUT_MS": "100", "RETRY_MAX": "2", "PATH": path, "COLUMNS": "200"}
    ours = {**environment, **changed, "REPLICAS": "1", "WEB_ADDRESS": f"127.0.0.1:{port}"}
    folder = tmp_path / "reader"
    folder.mkdir()
    with ExitStack() as running:
        searching = running.enter_context(fleet(ours, tmp_path / "fleet"))
        running.enter_context(web_process(ours, tmp_path / "web.log"))
        system = running.enter_context(running_system(ours, settings, tmp_path))
        ready(searching.orchestrator(), searching.searcher())
        yield running.enter_context(closing(Reader(system, site, folder, web_port=port)))


@pytest.mark.slow
def test_the_documents_do_what_they_say(reader: Reader) -> None:
    others = sorted(set(pages()) - set(IN_ORDER))
    for name in (*IN_ORDER, *others):
        for block in blocks(read(name), "console", "python"):
            try:
                reader.follow(block)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from error


def test_only_commands_that_have_tests_of_their_own_are_not_run() -> None:
    consoles = [(name, block) for name in pages() for block in blocks(read(name), "console")]
    skipped = [
        command.line
        for name, block in consoles
        if not block.runs and not followed_elsewhere(name, block)
        for command in commands(block)
    ]
    assert all(line.startswith(NOT_RUN) for line in skipped), skipped
    python = [(name, block) for name in pages() for block in blocks(read(name), "python") if not block.runs]
    assert all(followed_elsewhere(name, block) for name, block in python), python
    assert len([block for _, block in consoles if block.runs]) >= 12
    unchecked = [name for name in pages() if blocks(read(name), "sh", "bash", "shell")]
    assert not unchecked, "a console block shows what is printed as well"


def followed_elsewhere(name: str, block: Block) -> bool:
    """Return whether the comment before a block names a test that reads its page."""
    named = re.fullmatch(r"not run: (tests/\S+\.py) .+", block.note)
    return named is not None and f'"{name}"' in read(named[1])


def accepts(port: int) -> bool:
    """Return whether a server of the loopback accepts connections on a port."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
