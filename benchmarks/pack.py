"""Build a full pack, beside bare loops that fill the same database.

The two loops use the packer's schema, pragmas, statements and index settings:

- *in memory*: decoded pages, `executemany` into `pages`, FTS5 'rebuild' and 'optimize', VACUUM. Without store, JSON and
  compression this is the cost of SQLite alone.
- *from files*: the same, after opening each JSON file of the store's folder by its path, and `json.loads`.

`pack_full` also lists the store, compares ETags, checks every page, compresses and hashes the pack. It checks the
finished database, and writes pack and manifest. Each figure is the median of three runs, in documents per second of
wall time; the runs take turns.

`pack_incremental` follows after one page has changed, and after 1 % of them: CPU time as a share of a full pack's.
"""

from __future__ import annotations

import json
import statistics
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from app.pack import database as db
from app.pack.packer import pack_full, pack_incremental
from app.pack.plan import FullPackPlan
from app.pack.rows import INSERT, section
from app.storage.folder import FolderStore
from app.storage.layout import Page, content_key, content_prefix, manifest_key, page_id, to_json
from benchmarks.errors import BenchmarkError
from benchmarks.figures import FigureTable, MeasuredRow, verdict, verdict_below

DOMAIN = "bench.example"
RUNS = 3
#: Aim: documents per second, as a multiple of a bare loop of inserts into the same schema.
AIM = 0.7
#: Aims: CPU time of an incremental pack by its changed pages, as a share of that of a full pack.
SHARE_AIMS = {"1 page": 0.02, "1 % of the pages": 0.05}


def run(documents: int = 3_000) -> MeasuredRow:
    """Measure on `documents` pages of at most 7 kB."""
    with tempfile.TemporaryDirectory(prefix="perennial-bench-") as folder:
        store = FolderStore(Path(folder, "store"))
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
        shares = _shares(store, pages)
    return shown(documents, rates, shares)


def shown(documents: int, rates: Mapping[str, float], shares: Mapping[str, float]) -> MeasuredRow:
    """Return table and aims: documents per second of each contestant, and shares of a full pack by what has changed."""
    ratios = {name: rates["pack_full"] / rates[name] for name in ("from files", "in memory")}
    figure, reached = "`pack_full` documents a second, times a bare loop of inserts", ratios["in memory"]
    rows = [(name, f"{rate:.0f}", f"{ratios[name]:.2f}" if name in ratios else "") for name, rate in rates.items()]
    header = ("contestant", "documents/s", "pack_full is times this")
    table = FigureTable(f"Packing {documents} documents, median of {RUNS}", header, tuple(rows))
    aims = []
    for changed, share in shares.items():
        name, aim = f"`pack_incremental` of {changed}, CPU time, times that of `pack_full`", SHARE_AIMS[changed]
        aims.append((name, f"<= {aim:g}", f"{share:.3f}", verdict_below(share, aim)))
    return MeasuredRow(((figure, f"{AIM:g}", f"{reached:.2f}", verdict(reached, AIM)), *aims), (table,))


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


def _shares(store: FolderStore, pages: Sequence[Page]) -> dict[str, float]:
    """Return the CPU time of an incremental pack after each of several changes, as a share of that of a full pack."""
    full = statistics.median(_cpu_seconds(lambda: _pack(store)) for _ in range(RUNS))
    changes = dict(zip(SHARE_AIMS, (1, len(pages) // 100), strict=True))
    seconds: dict[str, list[float]] = {name: [] for name in changes}
    for run in range(RUNS):
        for name, number in changes.items():
            for page in pages[run :: len(pages) // number][:number]:
                changed = replace(page, body=f"{page.body} changed {name} {run}")
                store.put(content_key(DOMAIN, page_id(page.canonical_key)), to_json(changed))
            seconds[name].append(_cpu_seconds(lambda: pack_incremental(store, DOMAIN)))
    return {name: statistics.median(taken) / full for name, taken in seconds.items()}


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
