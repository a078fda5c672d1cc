"""Build a full pack, beside bare loops that fill the same database.

The two loops use the packer's schema, pragmas, statements and index settings:

- *in memory*: decoded pages, `executemany` into `pages`, FTS5 'rebuild' and 'optimize', VACUUM. Without store, JSON and
  compression this is the cost of SQLite alone.
- *from files*: the same, after opening each JSON file of the store's folder by its path, and `json.loads`.

`pack_full` also lists the store, compares ETags, checks every page, compresses and hashes the pack. It checks the
finished database, and writes pack and manifest. Each figure is the median of three runs, in documents per second of
wall time; the runs take turns.

`pack_incremental` follows after one page has changed, and after 1 % of them: CPU time as a share of a full pack's. The
bytes are counted that the packer writes and fetches, pages left out, and that a searcher with the former version
fetches.
"""

from __future__ import annotations

import json
import statistics
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from app.pack import database as db
from app.pack.fetch import fetch_pack_to
from app.pack.packer import pack_full, pack_incremental
from app.pack.plan import FullPackPlan
from app.pack.rows import INSERT, section
from app.storage.folder import FolderStore
from app.storage.layout import CONTENT_PREFIX, Page, content_key, content_prefix, manifest_key, page_id, to_json
from app.storage.store import StoredObject
from benchmarks.errors import BenchmarkError
from benchmarks.figures import FigureTable, MeasuredRow, verdict, verdict_below

DOMAIN = "bench.example"
RUNS = 3
#: Aim: documents per second, as a multiple of a bare loop of inserts into the same schema.
AIM = 0.7
#: Aims: CPU time of an incremental pack by its changed pages, as a share of that of a full pack.
SHARE_AIMS = {"1 page": 0.02, "1 % of the pages": 0.05}
#: Aims: MB that the packer writes for one changed page, and that a searcher fetches.
WRITTEN_AIM, FETCHED_AIM = 10.0, 2.0


@dataclass(frozen=True, slots=True)
class IncrementalFigures:
    """Medians after one change: CPU time as a share of that of a full pack; bytes written and fetched by the packer,
    and fetched by a searcher."""

    share: float
    written: float
    packer_fetched: float
    searcher_fetched: float


class _CountingStore(FolderStore):
    """A folder store that counts the bytes of all objects but pages that are written and fetched."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.written = self.fetched = 0

    def put(self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False) -> str:
        self.written += 0 if key.startswith(CONTENT_PREFIX) else len(data)
        return super().put(key, data, if_match=if_match, if_absent=if_absent)

    def get(self, key: str) -> StoredObject:
        stored = super().get(key)
        self.fetched += 0 if key.startswith(CONTENT_PREFIX) else len(stored.data)
        return stored

    def get_part(self, key: str, start: int, size: int) -> bytes:
        data = super().get_part(key, start, size)
        self.fetched += len(data)
        return data

    def counted(self, call: Callable[[], object]) -> tuple[int, int]:
        """Return the bytes that a call writes and fetches."""
        before = self.written, self.fetched
        call()
        return self.written - before[0], self.fetched - before[1]


def run(documents: int = 3_000) -> MeasuredRow:
    """Measure on `documents` pages of at most 7 kB."""
    with tempfile.TemporaryDirectory(prefix="perennial-bench-") as folder:
        store = _CountingStore(Path(folder, "store"))
        store.create()
        pages = list(corpus(documents))
        for page in pages:
            store.put(content_key(DOMAIN, page_id(page.canonical_key)), to_json(page))
        files = [store.root / stat.key for stat in store.list(content_prefix(DOMAIN))]
        rows = [_row(json.loads(path.read_bytes()), path.stem) for path in files]
        rates = _medians(
            documents,
            {
                "pack_full": lambda: _pack(store),
                "from files": lambda: _bare_loop(_row(json.loads(path.read_bytes()), path.stem) for path in files),
                "in memory": lambda: _bare_loop(rows),
            },
        )
        incremental = _incremental(store, pages, Path(folder))
    return shown(documents, rates, incremental)


def shown(documents: int, rates: Mapping[str, float], incremental: Mapping[str, IncrementalFigures]) -> MeasuredRow:
    """Return tables and aims: documents per second of each contestant, and incremental packs by what has changed."""
    ratios = {name: rates["pack_full"] / rates[name] for name in ("from files", "in memory")}
    figure, reached = "`pack_full` documents a second, times a bare loop of inserts", ratios["in memory"]
    rows = [(name, f"{rate:.0f}", f"{ratios[name]:.2f}" if name in ratios else "") for name, rate in rates.items()]
    header = ("contestant", "documents/s", "pack_full is times this")
    table = FigureTable(f"Packing {documents} documents, median of {RUNS}", header, tuple(rows))
    aims = [(figure, f"{AIM:g}", f"{reached:.2f}", verdict(reached, AIM))]
    for changed, figures in incremental.items():
        name, aim = f"`pack_incremental` of {changed}, CPU time, times that of `pack_full`", SHARE_AIMS[changed]
        aims.append((name, f"<= {aim:g}", f"{figures.share:.3f}", verdict_below(figures.share, aim)))
    one = incremental["1 page"]
    for name, count, aim in (
        ("written by the packer", one.written, WRITTEN_AIM),
        ("fetched by a searcher", one.searcher_fetched, FETCHED_AIM),
    ):
        megabytes = count / 1e6
        named = f"`pack_incremental` of 1 page, MB {name}"
        aims.append((named, f"<= {aim:g}", f"{megabytes:.2f}", verdict_below(megabytes, aim)))
    return MeasuredRow(tuple(aims), (table, _bytes_table(incremental)))


def _bytes_table(incremental: Mapping[str, IncrementalFigures]) -> FigureTable:
    every = incremental.values()
    rows = {
        "kB written by the packer": [f"{each.written / 1e3:.0f}" for each in every],
        "kB fetched by the packer": [f"{each.packer_fetched / 1e3:.0f}" for each in every],
        "kB fetched by a searcher": [f"{each.searcher_fetched / 1e3:.0f}" for each in every],
    }
    return FigureTable.of_figures("An incremental pack by what has changed", incremental, rows)


def corpus(documents: int) -> Iterator[Page]:
    """Yield `documents` pages of at most 7,000 characters from the standard library, repeated if it is too short."""
    pieces = cycle(_pieces(Path(sysconfig.get_path("stdlib")), 7_000))
    for number, text in enumerate(islice(pieces, documents)):
        path = f"/section-{number % 17}/page-{number}"
        yield Page(
            canonical_key=f"https://{DOMAIN}{path}",
            url=f"https://{DOMAIN}{path}",
            domain=DOMAIN,
            path=path,
            title=text[:50],
            description=text[50:200],
            headings=(text[200:230], text[230:260]),
            body=text[260:],
            lang="en",
        )


def _pieces(folder: Path, size: int) -> Iterator[str]:
    for path in sorted(folder.rglob("*.py")):
        if "site-packages" not in path.parts:
            text = " ".join(path.read_text(errors="replace").split())
            yield from (text[at : at + size] for at in range(0, len(text), size))


def _pack(store: FolderStore) -> None:
    store.delete(manifest_key(DOMAIN))  # A pack that is up to date is not built again.
    result = pack_full(store, DOMAIN, FullPackPlan(crawl_id="bench"))
    if not result.written:
        raise BenchmarkError(f"pack_full wrote no pack: {result}")


def _incremental(store: _CountingStore, pages: Sequence[Page], folder: Path) -> dict[str, IncrementalFigures]:
    """Return the medians of an incremental pack after each of several changes."""
    full = statistics.median(_cpu_seconds(lambda: _pack(store)) for _ in range(RUNS))
    work, held, fetched = folder / "work", folder / "held.sqlite", folder / "fetched.sqlite"
    pack_incremental(store, DOMAIN, work=work)
    fetch_pack_to(store, DOMAIN, held)
    changes = dict(zip(SHARE_AIMS, (1, len(pages) // 100), strict=True))
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in changes}

    def pack() -> None:
        pack_incremental(store, DOMAIN, work=work)

    for run in range(RUNS):
        for name, number in changes.items():
            for page in pages[run :: len(pages) // number][:number]:
                changed = replace(page, body=f"{page.body} changed {name} {run}")
                store.put(content_key(DOMAIN, page_id(page.canonical_key)), to_json(changed))
            started = time.process_time()
            written, packer_fetched = store.counted(pack)
            share = (time.process_time() - started) / full
            _, searcher_fetched = store.counted(lambda: fetch_pack_to(store, DOMAIN, fetched, former=held))
            fetched.replace(held)
            found[name].append((share, written, packer_fetched, searcher_fetched))
    return {name: IncrementalFigures(*map(statistics.median, zip(*each, strict=True))) for name, each in found.items()}


def _cpu_seconds(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def _bare_loop(rows: Iterable[tuple[str, ...]]) -> None:
    with tempfile.TemporaryDirectory(prefix="perennial-bench-") as name:
        folder = Path(name)
        with db.create(folder / "raw.sqlite") as database:
            database.execute("BEGIN")
            database.executemany(INSERT, rows)
            database.execute("INSERT INTO pages_fts (pages_fts) VALUES ('rebuild')")
            database.execute("INSERT INTO pages_fts (pages_fts) VALUES ('optimize')")
            database.execute("COMMIT")
            database.execute("VACUUM INTO ?", (str(folder / "dense.sqlite"),))


def _row(page: dict[str, Any], name: str) -> tuple[str, ...]:
    return (
        *(name, "etag", page["key"], page["url"], page["path"], section(page["path"])),
        *(page["lang"], page["modified"], page["content_type"], page["canonical"], "\n".join(page["alternates"])),
        *(page["title"], page["description"], "\n".join(page["headings"]), "", page["body"]),
    )


def _medians(documents: int, contestants: dict[str, Callable[[], None]]) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(RUNS):
        for name, contestant in contestants.items():
            started = time.perf_counter()
            contestant()
            seconds[name].append(time.perf_counter() - started)
    return {name: documents / statistics.median(taken) for name, taken in seconds.items()}
