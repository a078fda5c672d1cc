"""Time a query through web, broker and searcher, beside the same query in one process and in tantivy."""

from __future__ import annotations

import json
import re
import shutil
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from app.pack.manifest import list_manifests
from app.processes.procfile import procfile
from app.storage.open import create_store
from benchmarks import packs
from benchmarks.errors import BenchmarkError
from benchmarks.figures import Spread, spread
from benchmarks.modes import CROWD, MODES, Mode, kept_awake
from benchmarks.processes import LineProcess, line_process, running
from benchmarks.queries import BenchQuery, make_queries
from benchmarks.search_contestants import CONTESTANTS
from benchmarks.system import BenchSystem, environment
from benchmarks.usage import usage

ROUNDS = 5
#: Queries of each thread that are not counted.
WARM_UP = 5
SEARCHERS = 2
#: Seconds within which every searcher must load every pack.
PLACEMENT_TIMEOUT = 60.0
#: Contestants that tables name.
END_TO_END, SEARCH_CLIENT, PACK_SEARCHER, ECHO, HEALTH = (
    "end to end",
    "search client",
    "PackSearcher",
    "echo",
    "GET /healthz",
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One contestant's answers to all queries: seconds and total hits (-1: not counted) of each, and total seconds."""

    seconds: Sequence[float]
    totals: Sequence[int]
    wall: float


@dataclass(frozen=True, slots=True)
class SearchFigures:
    """Turns by contestant and mode, in the order of the rounds; `pages` is the number of pages of each domain.

    `cpu` is CPU seconds by process, over all turns of `end to end` with 8 queries at once. `others` is the share of the
    machine that other programs took, 0 to 1.
    """

    queries: Sequence[BenchQuery]
    pages: Mapping[str, int]
    turns: Mapping[str, Mapping[Mode, Sequence[Turn]]]
    cpu: Mapping[str, float]
    others: float

    def percentile(self, contestant: str, percent: int, mode: Mode, *, kind: str = "") -> float:
        """Return a percentile, in ms, of the queries of a kind, or of all."""
        seconds = [
            each
            for turn in self.turns[contestant][mode]
            for query, each in zip(self.queries, turn.seconds, strict=True)
            if kind in ("", query.kind)
        ]
        return _percentile(seconds, percent)

    def rate(self, contestant: str, mode: Mode) -> Spread:
        """Return the queries per second over the rounds."""
        return spread([len(self.queries) / turn.wall for turn in self.turns[contestant][mode]])

    def added(self, contestant: str, other: str, mode: Mode, *, kind: str = "", percent: int = 50) -> Spread:
        """Return how many ms a contestant takes longer than another per query: this percentile of each round."""
        pairs = zip(self.turns[contestant][mode], self.turns[other][mode], strict=True)
        return spread([_percentile(self._differences(own, other_turn, kind), percent) for own, other_turn in pairs])

    def _differences(self, turn: Turn, other: Turn, kind: str) -> list[float]:
        pairs = zip(self.queries, turn.seconds, other.seconds, strict=True)
        return [own - others for query, own, others in pairs if kind in ("", query.kind)]


def _percentile(seconds: Sequence[float], percent: int) -> float:
    """Return a percentile in ms."""
    return 1_000 * statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1]


@dataclass(frozen=True, slots=True)
class SearchContestant:
    """A process that answers queries."""

    process: LineProcess

    def begin(self, mode: Mode, queries: Sequence[BenchQuery]) -> None:
        """Start a mode with new connections and answer queries that are not counted."""
        self._send(queries, threads=mode.threads, pause=mode.pause)

    def answer(self, queries: Sequence[BenchQuery]) -> Turn:
        """Answer the queries with the threads of the mode."""
        return Turn(**self._send(queries))

    def _send(self, queries: Sequence[BenchQuery], **mode: float) -> dict[str, Any]:
        command = {"queries": [(query.domain, query.q) for query in queries], **mode}
        fields: dict[str, Any] = json.loads(self.process.ask(json.dumps(command)))
        return fields


def run(system: BenchSystem, *, rounds: int = ROUNDS, folder: Path | None = None) -> SearchFigures:
    """Build the packs, start the search cluster and let all contestants take turns.

    `folder` is for downloaded sites, by default that of the system. Raises BenchmarkError if contestants find different
    numbers of pages.
    """
    with _packs(system, folder or system.folder) as (paths, pages), _started(system) as (web, groups):
        queries = make_queries(paths)
        config = {
            "packs": {domain: str(path) for domain, path in paths.items()},
            "web": web,
            "broker": system.settings.broker,
            "folder": str(system.folder / "search"),
        }
        with ExitStack() as stack:
            contestants = [
                SearchContestant(stack.enter_context(_started_contestant(name, config, system))) for name in CONTESTANTS
            ]
            check(_by_turns(contestants, queries, CROWD), queries)
            return _measure(contestants, queries, pages, groups, rounds=rounds)


def _measure(
    contestants: Sequence[SearchContestant],
    queries: Sequence[BenchQuery],
    pages: Mapping[str, int],
    groups: Mapping[str, int],
    *,
    rounds: int,
) -> SearchFigures:
    turns: dict[str, dict[Mode, list[Turn]]] = {
        contestant.process.name: {mode: [] for mode in MODES} for contestant in contestants
    }
    start, meter = usage(), CpuMeter(groups)
    for number in range(rounds):
        # The order rotates, because work that one contestant leaves behind slows the next.
        first = number % len(contestants)
        order = [*contestants[first:], *contestants[:first]]
        for mode in MODES:
            for name, turn in _by_turns(order, queries, mode, meter).items():
                turns[name][mode].append(turn)
    return SearchFigures(queries, pages, turns, meter.spent, usage().since(start).others)


def _by_turns(
    contestants: Sequence[SearchContestant], queries: Sequence[BenchQuery], mode: Mode, meter: CpuMeter | None = None
) -> dict[str, Turn]:
    """Let one contestant after the other answer all queries, metering `end to end` with 8 queries at once."""
    turns = {}
    with kept_awake() if mode.awake else nullcontext():
        for contestant in contestants:
            contestant.begin(mode, queries[:WARM_UP])
            with meter.on() if meter and mode is CROWD and contestant.process.name == END_TO_END else nullcontext():
                turns[contestant.process.name] = contestant.answer(queries)
    return turns


@dataclass(frozen=True, slots=True)
class CpuMeter:
    """Adds up CPU seconds of processes during its blocks."""

    groups: Mapping[str, int]
    spent: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Measure during the block."""
        before = usage(self.groups)
        yield
        cpu = usage(self.groups).since(before).cpu
        self.spent.update({name: seconds for name, seconds in cpu.items() if not name.startswith("own")})


def check(turns: Mapping[str, Turn], queries: Sequence[BenchQuery]) -> None:
    """Raise BenchmarkError unless all contestants that count matching pages agree."""
    expected = turns[PACK_SEARCHER].totals
    for name, turn in turns.items():
        wrong = [
            f"{query.q!r} on {query.domain}: {total}, not {count}"
            for query, total, count in zip(queries, turn.totals, expected, strict=True)
            if total not in (-1, count)
        ]
        if wrong or (name == END_TO_END and -1 in turn.totals):
            raise BenchmarkError(f"{name} does not find the pages that {PACK_SEARCHER} finds: {'; '.join(wrong[:5])}")


# The search cluster


@contextmanager
def _packs(system: BenchSystem, folder: Path) -> Iterator[tuple[dict[str, Path], dict[str, int]]]:
    """Fill an empty store. Yield the decompressed packs and their numbers of pages, by domain."""
    home = system.folder / "search"
    shutil.rmtree(home, ignore_errors=True)
    (home / "unpacked").mkdir(parents=True)
    store, _ = create_store((home / "store").absolute().as_uri())
    paths = packs.build(store, downloads=folder / "sites", folder=home / "unpacked")
    yield paths, {manifest.domain: manifest.pages for manifest in list_manifests(store)}
    shutil.rmtree(home, ignore_errors=True)


@contextmanager
def _started(system: BenchSystem) -> Iterator[tuple[str, dict[str, int]]]:
    """Run orchestrator, searchers, web and echo. Yield the web's address and the process ids."""
    home, variables = system.folder / "search", _environment(system)
    with ExitStack() as stack:

        def start(name: str, command: str, ready: str = " ready.") -> int:
            return stack.enter_context(running(command, variables, home / f"{name}.log", ready=ready)).pid

        groups = {"orchestrator": start("orchestrator", procfile()["orchestrator"])}
        for number in range(1, SEARCHERS + 1):
            name = f"searcher {number}"
            groups[name] = start(name, procfile()["searcher"])
        groups["web"] = start("web", procfile()["web"], "Search page: ")
        start("echo", f"{sys.executable} -m benchmarks.echo", "echo is ready.")
        address = _address(home / "web.log")
        _await_packs(address)
        yield address, {**groups, "RabbitMQ": system.pids["RabbitMQ"]}


def _environment(system: BenchSystem) -> dict[str, str]:
    # All queries come from one address, which the default limit would slow down.
    values = {"REPLICAS": SEARCHERS, "WEB_ADDRESS": "127.0.0.1:0", "WEB_RATE_LIMIT": "1000000/second"}
    values["BROKER_URL"] = system.settings.broker  # The contestants have no settings.
    return environment(system.settings, (system.folder / "search").absolute(), values)


def _address(log: Path) -> str:
    found = re.search(r"Search page: http://(\S+?)/", log.read_text(errors="replace"))
    if found is None:
        raise BenchmarkError(f"the web process did not log its address: {log.read_text(errors='replace')[-500:]}")
    return found[1]


def _await_packs(address: str) -> None:
    """Wait until a search of each domain succeeds; raises BenchmarkError after PLACEMENT_TIMEOUT seconds."""
    deadline, reason = time.monotonic() + PLACEMENT_TIMEOUT, ""
    for domain in packs.DOMAINS:
        while not (reply := _search(address, domain))[0]:
            reason = reply[1]
            if time.monotonic() > deadline:
                raise BenchmarkError(f"{domain} cannot be searched after {PLACEMENT_TIMEOUT:g} s: {reason}")
            time.sleep(0.1)


def _search(address: str, domain: str) -> tuple[bool, str]:
    reply = requests.get(f"http://{address}/api/v1/search", params={"domain": domain, "q": "name"}, timeout=30)
    return reply.ok, f"{reply.status_code}: {reply.text[:300]}"


def _started_contestant(
    name: str, config: Mapping[str, Any], system: BenchSystem
) -> AbstractContextManager[LineProcess]:
    arguments = (name, json.dumps(config))
    return line_process(name, "benchmarks.search_contestants", *arguments, environment=_environment(system))
