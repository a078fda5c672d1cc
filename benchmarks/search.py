"""How long a query takes through web, broker and searcher, beside the same query in one process and beside tantivy."""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import requests

from app.pack.manifest import list_manifests
from app.storage.folder import FolderStore
from benchmarks import packs, questions
from benchmarks.crawl import System
from benchmarks.errors import BenchmarkError
from benchmarks.figures import Spread, spread
from benchmarks.finders import FINDERS
from benchmarks.modes import CROWD, MODES, Mode, kept_awake
from benchmarks.processes import running
from benchmarks.questions import Ask
from benchmarks.usage import usage
from config.settings import ROOT

ROUNDS = 5
#: Queries with which each thread begins, and which are not counted.
WARM_UP = 5
SEARCHERS = 2
#: Seconds within which every pack is on every searcher.
PLACED = 60.0
#: Finders that are compared by name.
END_TO_END, ROUTER, SEARCHER, ECHO, HEALTH = "end to end", "RemoteFinder", "Searcher", "echo", "GET /healthz"

_ORCHESTRATOR = "orchestrator"


@dataclass(frozen=True, slots=True)
class Turn:
    """All queries, once, by one contestant: seconds and pages found (-1: not counted) by query, and seconds in all."""

    seconds: Sequence[float]
    totals: Sequence[int]
    wall: float


@dataclass(frozen=True, slots=True)
class Searched:
    """What was measured. `turns` are by contestant and mode, in the order of the rounds.

    `pages` are those of each domain; `cpu` is CPU seconds of each of our processes in all turns of `end to end` with
    a crowd, and `others` the share of the machine that others took, 0 to 1.
    """

    asked: Sequence[Ask]
    pages: Mapping[str, int]
    turns: Mapping[str, Mapping[Mode, Sequence[Turn]]]
    cpu: Mapping[str, float]
    others: float

    def percentile(self, contestant: str, percent: int, mode: Mode, *, kind: str = "") -> float:
        """Return the milliseconds within which so many of a hundred queries were answered, of a kind or of all."""
        seconds = [
            each
            for turn in self.turns[contestant][mode]
            for ask, each in zip(self.asked, turn.seconds, strict=True)
            if kind in ("", ask.kind)
        ]
        return _percentile(seconds, percent)

    def rate(self, contestant: str, mode: Mode) -> Spread:
        """Return the queries answered a second, over the rounds."""
        return spread([len(self.asked) / turn.wall for turn in self.turns[contestant][mode]])

    def more(self, contestant: str, other: str, mode: Mode, *, kind: str = "", percent: int = 50) -> Spread:
        """Return by how many ms a contestant takes longer for the same query: of each round, this percentile."""
        pairs = zip(self.turns[contestant][mode], self.turns[other][mode], strict=True)
        return spread([_percentile(self._differences(mine, its, kind), percent) for mine, its in pairs])

    def _differences(self, mine: Turn, its: Turn, kind: str) -> list[float]:
        each = zip(self.asked, mine.seconds, its.seconds, strict=True)
        return [one - other for ask, one, other in each if kind in ("", ask.kind)]


def _percentile(seconds: Sequence[float], percent: int) -> float:
    """Return in ms what so many of a hundred are below."""
    return 1_000 * statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1]


@dataclass(frozen=True, slots=True)
class Finder:
    """A process that finds in one way."""

    name: str
    process: subprocess.Popen[str]

    def begin(self, mode: Mode, asked: Sequence[Ask]) -> None:
        """Have it begin anew, in another mode; the queries are not counted."""
        self._order(asked, threads=mode.threads, pause=mode.pause)

    def answer(self, asked: Sequence[Ask]) -> Turn:
        """Let its threads answer the queries."""
        return Turn(**self._order(asked))

    def _order(self, asked: Sequence[Ask], **more: float) -> dict[str, Any]:
        into, out = self._pipes()
        into.write(json.dumps({"asked": [(ask.domain, ask.q) for ask in asked], **more}) + "\n")
        into.flush()
        answer = out.readline()
        if not answer:
            raise BenchmarkError(f"the finder {self.name!r} ended with {self.process.wait(10)}")
        told: dict[str, Any] = json.loads(answer)
        return told

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        if self.process.stdin is None or self.process.stdout is None:
            raise BenchmarkError(f"the finder {self.name!r} was started without pipes")
        return self.process.stdin, self.process.stdout


def run(here: System, *, rounds: int = ROUNDS, folder: Path | None = None) -> Searched:
    """Build the packs, start the system, and let all ways to find take turns.

    `folder` is where downloaded sites are kept: that of the system by default. Raises BenchmarkError where they do not
    find the same number of pages.
    """
    with _packs(here, folder or here.folder) as (paths, pages), _started(here) as (web, groups):
        asked = questions.make(paths)
        config = {
            "packs": {domain: str(path) for domain, path in paths.items()},
            "web": web,
            "broker": here.settings.broker,
            "folder": str(here.folder / "search"),
        }
        with ExitStack() as stack:
            finders = [stack.enter_context(_finder(name, config, here)) for name in FINDERS]
            check(_by_turns(finders, asked, CROWD), asked)
            return _measure(finders, asked, pages, groups, rounds=rounds)


def _measure(
    finders: Sequence[Finder], asked: Sequence[Ask], pages: Mapping[str, int], groups: Mapping[str, int], *, rounds: int
) -> Searched:
    turns: dict[str, dict[Mode, list[Turn]]] = {each.name: {mode: [] for mode in MODES} for each in finders}
    # Our own children are all that runs, but for the broker.
    own = {"own": os.getpid(), "RabbitMQ": groups["RabbitMQ"]}
    start, watch = usage(own), Watch(groups)
    for number in range(rounds):
        # Who follows whom changes: what one leaves to be done is in the way of the next.
        first = number % len(finders)
        order = [*finders[first:], *finders[:first]]
        for mode in MODES:
            for name, turn in _by_turns(order, asked, mode, watch).items():
                turns[name][mode].append(turn)
    end = usage(own)
    return Searched(asked, pages, turns, watch.spent, end.others(start, ours=sum(end.since(start).values())))


def _by_turns(
    finders: Sequence[Finder], asked: Sequence[Ask], mode: Mode, watch: Watch | None = None
) -> dict[str, Turn]:
    """Let one finder after the other answer all queries; a crowd's, end to end, under watch."""
    found = {}
    with kept_awake() if mode.awake else nullcontext():
        for finder in finders:
            finder.begin(mode, asked[:WARM_UP])
            with watch.on() if watch and mode is CROWD and finder.name == END_TO_END else nullcontext():
                found[finder.name] = finder.answer(asked)
    return found


@dataclass(frozen=True, slots=True)
class Watch:
    """Adds up the CPU seconds of processes while it is on."""

    groups: Mapping[str, int]
    spent: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Watch during the block."""
        before = usage(self.groups)
        yield
        self.spent.update(usage(self.groups).since(before))


def check(turns: Mapping[str, Turn], asked: Sequence[Ask]) -> None:
    """Raise BenchmarkError unless all who count the pages that match count the same."""
    right = turns[SEARCHER].totals
    for name, turn in turns.items():
        wrong = [
            f"{ask.q!r} on {ask.domain}: {found}, not {count}"
            for ask, found, count in zip(asked, turn.totals, right, strict=True)
            if found not in (-1, count)
        ]
        if wrong or (name == END_TO_END and -1 in turn.totals):
            raise BenchmarkError(f"{name} does not find what {SEARCHER} finds: {'; '.join(wrong[:5])}")


# The system


@contextmanager
def _packs(here: System, folder: Path) -> Iterator[tuple[dict[str, Path], dict[str, int]]]:
    """Fill a fresh store; yield the unpacked packs, and the number of pages of each, by domain."""
    home = here.folder / "search"
    shutil.rmtree(home, ignore_errors=True)
    (home / "unpacked").mkdir(parents=True)
    store = FolderStore(home / "store")
    paths = packs.build(store, downloads=folder / "sites", folder=home / "unpacked")
    yield paths, {manifest.domain: manifest.pages for manifest in list_manifests(store)}
    shutil.rmtree(home, ignore_errors=True)


@contextmanager
def _started(here: System) -> Iterator[tuple[str, dict[str, int]]]:
    """Run orchestrator, searchers, web and an echo; yield the web's address and the ids of the processes."""
    home, environment = here.folder / "search", _environment(here)
    with ExitStack() as stack:

        def start(name: str, command: str, ready: str = " ready.") -> int:
            return stack.enter_context(running(command, environment, home / f"{name}.log", ready=ready)).pid

        groups = {"orchestrator": start("orchestrator", _worker(_ORCHESTRATOR, "orchestrator"))}
        for number in range(1, SEARCHERS + 1):
            name = f"searcher {number}"
            groups[name] = start(name, f"{sys.executable} -m app.cluster.searcher")
        groups["web"] = start("web", f"{sys.executable} -m app.web", "Search page: ")
        start("echo", f"{sys.executable} -m benchmarks.echo", "echo is ready.")
        address = _address(home / "web.log")
        _await_packs(address)
        yield address, {**groups, "RabbitMQ": here.pids["RabbitMQ"]}


def _worker(queues: str, name: str) -> str:
    options = "--pool=solo --without-gossip --without-mingle"
    return f"{sys.executable} -m celery -A app worker --hostname={name}@%h --queues={queues} {options}"


def _environment(here: System) -> dict[str, str]:
    return {
        **os.environ,
        "PERENNIAL_DATA_DIR": str(here.settings.data_dir),
        "STORE_URL": (here.folder / "search" / "store").absolute().as_uri(),
        "BROKER_URL": here.settings.broker,
        "SEARCHER_DIR": str(here.folder / "search" / "searchers"),
        "REPLICAS": str(SEARCHERS),
        "WEB_PORT": "0",
        # All queries come from one address.
        "WEB_RATE_LIMIT": "1000000/second",
    }


def _address(log: Path) -> str:
    found = re.search(r"Search page: http://(\S+?)/", log.read_text(errors="replace"))
    if found is None:
        raise BenchmarkError(f"the web does not say where it is: {log.read_text(errors='replace')[-500:]}")
    return found[1]


def _await_packs(address: str) -> None:
    """Wait until each domain answers; raises BenchmarkError after PLACED seconds."""
    deadline, said = time.monotonic() + PLACED, ""
    for domain in packs.DOMAINS:
        while not (answer := _ask(address, domain))[0]:
            said = answer[1]
            if time.monotonic() > deadline:
                raise BenchmarkError(f"{domain} does not answer after {PLACED:g} s: {said}")
            time.sleep(0.1)


def _ask(address: str, domain: str) -> tuple[bool, str]:
    answer = requests.get(f"http://{address}/api/v1/search", params={"domain": domain, "q": "name"}, timeout=30)
    return answer.ok, f"{answer.status_code}: {answer.text[:300]}"


@contextmanager
def _finder(name: str, config: Mapping[str, Any], here: System) -> Iterator[Finder]:
    """Run a finder for the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.finders", name, json.dumps(config)],
        cwd=ROOT,
        env=_environment(here),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Finder(name, process)
    finally:
        process.kill()
        process.communicate()
