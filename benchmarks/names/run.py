"""Run every contestant on the names. `python -m benchmarks.names.run` prints the tuning half alone."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from rich.console import Console

from app.cluster.client.corrected import search_corrected
from app.cluster.client.local import LocalSearchClient
from app.search.contract import SearchRequest
from benchmarks import sites
from benchmarks.names import tables
from benchmarks.names.definitions import Outcome, Place, Sections
from benchmarks.names.indexes import KINDS, SITES, NamedPlace
from benchmarks.relevance import corpus
from benchmarks.relevance.contestants import OURS, TANTIVY, TANTIVY_FIELDS, path_of, tantivy, tantivy_with_our_fields
from config.settings import ROOT

#: Names of one kind, site and half.
NAMES: Final = 30
_SEED: Final = 30
#: What a visitor reads.
_LANGUAGES: Final = ("en",)

#: Returns the first hit for a query.
First = Callable[[str], Place | None]


def ours(pack: Path, site: str) -> First:
    """Search as the search page does."""
    del site
    client = LocalSearchClient([pack])
    domains = tuple(route.domain for route in client.routes().routes)

    def first(q: str) -> Place | None:
        request = SearchRequest(domains=domains, q=q, limit=10, languages=_LANGUAGES)
        for hit in asyncio.run(search_corrected(client, request)).hits:
            return Place(path_of(hit.path), hit.opens_at.fragment if hit.opens_at else "")
        return None

    return first


def _without_sections(make: Callable[[Path, str], Callable[[str], list[str]]]) -> Callable[[Path, str], First]:
    """Return a contestant whose hits are pages."""

    def made(pack: Path, site: str) -> First:
        rank = make(pack, site)
        return lambda q: next((Place(path, None) for path in rank(q)), None)

    return made


CONTESTANTS: Final[dict[str, Callable[[Path, str], First]]] = {
    OURS: ours,
    TANTIVY: _without_sections(tantivy),
    TANTIVY_FIELDS: _without_sections(tantivy_with_our_fields),
}


def run(folder: Path, halves: Mapping[str, bool]) -> dict[str, list[Outcome]]:
    """Return the outcomes of halves, by their names. They are given with whether they are held out."""
    outcomes: dict[str, list[Outcome]] = {half: [] for half in halves}
    for site in SITES:
        pack = corpus.build([site], folder)[site]
        root = sites.unpack(SITES[site].site, folder / "sites")
        sections = Sections(root)
        for contestant, make in CONTESTANTS.items():
            first = make(pack, site)
            for half, held_out in halves.items():
                found = ((name, first(name.q)) for name in chosen(site, root, held_out=held_out))
                outcomes[half] += (
                    Outcome(site, name, contestant, place, sections.opened(place, name)) for name, place in found
                )
    return outcomes


def chosen(site: str, root: Path, *, held_out: bool) -> Iterator[NamedPlace]:
    """Yield names of one half of a site's index, drawn by chance: `NAMES` of each kind, or all if there are fewer.

    Names that differ only in their case are of one half.
    """
    for kind in KINDS:
        of_kind = [each for each in SITES[site].read(root) if each.kind == kind]
        half = {each.q: each for each in of_kind if zlib.crc32(each.q.lower().encode()) % 2 == held_out}
        yield from random.Random(_SEED).sample(sorted(half.values(), key=lambda each: each.q), min(NAMES, len(half)))


if __name__ == "__main__":
    console = Console()
    for table in tables.shown(run(ROOT / ".perennial" / "bench", {tables.TUNING: False})).tables:
        console.print(table.rich())
