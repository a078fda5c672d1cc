"""Build a pack of real documentation, beside the floor of the same output; update it; and watch the packer's memory."""

from __future__ import annotations

import gc
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import TypeAlias, cast

from app.pack.download import download_pack_to
from app.pack.packer import pack_full, pack_incremental
from app.pack.plan import FullPackPlan
from app.storage.folder import FolderStore
from app.storage.layout import (
    CONTENT_PREFIX,
    Page,
    content_key,
    content_prefix,
    from_json,
    id_in_key,
    manifest_key,
    page_id,
    to_json,
)
from benchmarks import pack_floor, packs, sites
from benchmarks.errors import BenchmarkError
from benchmarks.figures import FigureTable, MeasuredRow, at_most, bullets, ratios
from config.settings import ROOT
from tests.packs import fetch_pack

DOMAIN = "bench.example"
SITES = {**sites.SITES, "boost": sites.DebianSite("libboost1.81-doc", "usr/share/doc/libboost1.81-doc")}
FIRST, CHANGED, FLOOR = "first", "5 % changed", "floor"
#: Aims: CPU time of a full pack, times the floor.
FLOOR_AIMS = {FIRST: 2.5, CHANGED: 1.5}
#: Changes that are measured, each so often.
NAMED, ONE, SOME, RUNS = "1 named page", "1 page", "1 % of the pages", 3
#: Aims: MB that the packer writes for one changed page, and that a searcher fetches.
WRITTEN_AIM, FETCHED_AIM = 10.0, 2.0

METHOD = bullets(
    """Pack: *first* is a full pack without a former one. The floor writes the tables and indexes of the finished pack
    again, from rows that were read before. It has the packer's schema and pragmas, a compact copy, its check, and the
    compression of its frames. `pack_full` also lists and reads the store, and derives all of it from the pages. Each
    figure is the median of the rounds, in CPU time; the contestants take turns. Beyond the 5,600 pages of three Debian
    packages, pages are copies under other addresses. Peak memory is that of a process which does nothing else.""",
    """`pack_incremental` follows after one page has changed, and after 1 % of them. It lists all stored pages, unless
    its message names the changed page, as that of `perennial index --now` does. Its CPU time is a share of a full
    pack's. The bytes are counted that the packer writes, and those of frames that a searcher with the former version
    fetches.""",
)

#: CPU seconds of each round by contestant.
Seconds: TypeAlias = Mapping[str, Sequence[float]]
#: Medians by change: CPU time as a share of that of a full pack, bytes written, and fetched by a searcher.
Incremental: TypeAlias = Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackForm:
    """A form of the row. `share_aims` are CPU times of an incremental pack by its changes, as shares of a full one's.

    `memory_aim` is the peak in MB of a packer with `memory_pages`.
    """

    pages: int
    rounds: int
    share_aims: Mapping[str, float]
    memory_pages: int
    memory_aim: float


SHORT = PackForm(
    pages=5_000,
    rounds=3,
    share_aims={NAMED: 0.02, ONE: 0.02, SOME: 0.05},
    memory_pages=1_000,
    memory_aim=90,
)
LONG = PackForm(
    pages=50_000,
    rounds=1,
    share_aims={NAMED: 0.005, ONE: 0.005, SOME: 0.05},
    memory_pages=50_000,
    memory_aim=200,
)


class _CountingStore(FolderStore):
    """A folder store that counts the bytes of packs that are written and fetched."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.written = self.fetched = 0

    def put(self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False) -> str:
        self.written += 0 if key.startswith(CONTENT_PREFIX) else len(data)
        return super().put(key, data, if_match=if_match, if_absent=if_absent)

    def get_part(self, key: str, start: int, size: int) -> bytes:
        data = super().get_part(key, start, size)
        self.fetched += len(data)
        return data


def run(folder: Path, form: PackForm = SHORT) -> MeasuredRow:
    """Measure a form. Packages are downloaded to `folder`."""
    with tempfile.TemporaryDirectory(prefix="pack-", dir=folder) as name:
        home = Path(name)
        store = _CountingStore(home / "store")
        store.create()
        pages = corpus(folder / "sites")
        _put(store, islice(pages, form.memory_pages))
        command = [sys.executable, "-m", "benchmarks.memory", str(store.root), DOMAIN]
        peak = int(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)
        # It may have all pages of the form: then the next full pack would be up to date.
        store.delete(manifest_key(DOMAIN))
        _put(store, islice(pages, form.pages - form.memory_pages))
        keys = [stat.key for stat in store.list(content_prefix(DOMAIN))]
        seconds = _full(store, keys, home, form.rounds)
        incremental = _incremental(store, keys, home, full=statistics.median(seconds[FIRST]))
    return shown(form, seconds, incremental, peak)


def shown(form: PackForm, seconds: Seconds, incremental: Incremental, peak: int) -> MeasuredRow:
    """Return a table of full packs, and aims; `peak` is bytes of memory."""
    times = {name: ratios(each, seconds[FLOOR]) for name, each in seconds.items()}
    size, (_, written, fetched) = f"{form.pages:,} pages", incremental[ONE]
    aims = [
        at_most(f"`pack_full` of {size}, {name}, CPU time, times the floor", aim, times[name].median, digits=2)
        for name, aim in FLOOR_AIMS.items()
    ]
    aims += [
        at_most(f"`pack_incremental` of {name} of {size}, times `pack_full`", aim, incremental[name][0], digits=4)
        for name, aim in form.share_aims.items()
    ]
    aims += [
        at_most(f"MB written for {ONE} of {size}", WRITTEN_AIM, written / 1e6, digits=2),
        at_most(f"MB fetched by a searcher for {ONE} of {size}", FETCHED_AIM, fetched / 1e6, digits=2),
        at_most(f"`pack_full` of {form.memory_pages:,} pages, MB at most", form.memory_aim, peak / 1e6, digits=0),
    ]
    rows = [
        (name, f"{1_000 * statistics.median(each) / form.pages:.2f}", times[name].text(2))
        for name, each in seconds.items()
    ]
    header = ("`pack_full`", "CPU ms a page", "times the floor")
    return MeasuredRow(tuple(aims), (FigureTable(f"Packing {size}", header, tuple(rows)),))


def corpus(downloads: Path) -> Iterator[Page]:
    """Yield pages of real documentation in random order, then copies of them under other addresses, without end."""
    originals = [
        (name, to_json(page))
        for name, site in SITES.items()
        for page in packs.pages(DOMAIN, sites.unpack(site, downloads))
    ]
    random.Random(0).shuffle(originals)
    # Copies have paths of another length: else they were beside each other in a pack, and compressed well.
    for number in count():
        yield from (_moved(_page(data), name + "copy" * number) for name, data in originals)


def _page(data: bytes) -> Page:
    return cast(Page, from_json(data))


def _moved(page: Page, folder: str) -> Page:
    """Return the page under a folder, which is a line of its text, with links to the pages under it."""

    def moved(url: str) -> str:
        return url.replace(f"{DOMAIN}/", f"{DOMAIN}/{folder}/", 1)

    return replace(
        page,
        canonical_key=moved(page.canonical_key),
        url=moved(page.url),
        path=f"/{folder}{page.path}",
        body=f"{page.body} {folder}",
        canonical=moved(page.canonical),
        links=tuple(link._replace(url=moved(link.url)) for link in page.links),
    )


def _put(store: FolderStore, pages: Iterable[Page]) -> None:
    for page in pages:
        store.put(content_key(DOMAIN, page_id(page.canonical_key)), to_json(page))


def _change(store: FolderStore, keys: Iterable[str], text: str) -> None:
    """Add a text to stored pages."""
    pages = (_page(store.get(key).data) for key in keys)
    _put(store, (replace(page, body=f"{page.body} changed {text}") for page in pages))


def _full(store: FolderStore, keys: Sequence[str], home: Path, rounds: int) -> Seconds:
    """Return the CPU seconds of full packs and of the floor in each round."""
    seconds: dict[str, list[float]] = {FIRST: [], CHANGED: [], FLOOR: []}
    work = home / "work"
    _pack(store, work)
    rows = pack_floor.read_rows(fetch_pack(store, DOMAIN, home))
    # The collector would look through these rows while the packer runs.
    gc.freeze()
    for number in range(rounds):
        store.delete(manifest_key(DOMAIN))  # Without a former pack, the next one is built from all pages.
        seconds[FIRST].append(_cpu_seconds(lambda: _pack(store, work)))
        _change(store, keys[number::20], f"in round {number}")
        seconds[CHANGED].append(_cpu_seconds(lambda: _pack(store, work)))
        seconds[FLOOR].append(_cpu_seconds(lambda: pack_floor.write(rows, home)))
        (home / "compact.sqlite").unlink()
    return seconds


def _pack(store: FolderStore, work: Path) -> None:
    result = pack_full(store, DOMAIN, FullPackPlan(crawl_id="bench"), work=work)
    if not result.written:
        raise BenchmarkError(f"pack_full wrote no pack: {result}")


def _incremental(store: _CountingStore, keys: Sequence[str], home: Path, *, full: float) -> Incremental:
    """Return the medians of an incremental pack after each of several changes; `full` is CPU seconds of a full pack."""
    work, held, fetched = home / "work", home / "held.sqlite", home / "fetched.sqlite"
    download_pack_to(store, DOMAIN, held)
    changes = {NAMED: 1, ONE: 1, SOME: len(keys) // 100}
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in changes}
    for run in range(RUNS):
        for name, number in changes.items():
            changed = keys[run :: len(keys) // number][:number]
            page_ids = [*map(id_in_key, changed)] if name == NAMED else None
            _change(store, changed, f"{name} {run}")
            store.written = store.fetched = 0
            update = partial(pack_incremental, store, DOMAIN, page_ids=page_ids, work=work)
            share = _cpu_seconds(update) / full
            written, store.fetched = store.written, 0
            download_pack_to(store, DOMAIN, fetched, former=held)
            fetched.replace(held)
            found[name].append((share, written, store.fetched))
    return {name: tuple(map(statistics.median, zip(*each, strict=True))) for name, each in found.items()}


def _cpu_seconds(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started
