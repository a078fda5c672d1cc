"""Names of indexes: every contestant's first hits. `python -m benchmarks.names.run` prints the tuning half alone."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from app.cluster.client.corrected import search_corrected
from app.cluster.client.local import LocalSearchClient
from app.search.contract import SearchRequest
from benchmarks import sites
from benchmarks.figures import Aim, FigureTable, MeasuredRow, at_least
from benchmarks.names.definitions import Opened, Outcome, Place, Sections
from benchmarks.names.indexes import BOTH_WORDS, KINDS, OWN_PAGE, SECTION, SITES, NamedPlace
from benchmarks.relevance import corpus
from benchmarks.relevance.contestants import OURS, TANTIVY, TANTIVY_FIELDS, path_of, tantivy, tantivy_with_our_fields
from config.settings import ROOT

#: Share of the names whose first hit is the page that defines them, and of these the share that open at the section.
AIMS: Final = {SECTION: 0.95, OWN_PAGE: 0.97, BOTH_WORDS: 0.99}
OPENED_AIM: Final = 0.98
TUNING, HELD_OUT = "tuning half", "held-out half"

METHOD = """\
- Names are drawn by chance from the indexes of eight sites. These are inventories of Sphinx, search indexes of javadoc,
  the indexes of DocBook, and lists of Apache and SQLite. A name that the index gives to several places is left out.
  Which half a name is in, tuning or held out, depends on the name alone. A hit is right on the page of the index. It
  opens right at the index's fragment, or at a heading or term next to it. The visitor reads English. Both contestants
  with tantivy have a field of headings, and no sections.
"""


def shown(halves: Mapping[str, Sequence[Outcome]]) -> MeasuredRow:
    """Return the tables of each half, and the aims, which are for the half that is held out."""
    aims = tuple(_aims(halves[HELD_OUT])) if HELD_OUT in halves else ()
    return MeasuredRow(aims, tuple(table for half in halves.items() for table in (_contestants(*half), _sites(*half))))


def _aims(outcomes: Sequence[Outcome]) -> Iterable[Aim]:
    own = [each for each in outcomes if each.contestant == OURS]
    for kind, aim in AIMS.items():
        reached = _right([each for each in own if each.name.kind == kind])
        yield at_least(f"first hit defines the name, {kind}", aim, reached, digits=3)
    yield at_least("opened at the right section, of those", OPENED_AIM, _opened(own), digits=3)


def _contestants(half: str, outcomes: Sequence[Outcome]) -> FigureTable:
    rows = []
    for contestant in dict.fromkeys(each.contestant for each in outcomes):
        of_it = [each for each in outcomes if each.contestant == contestant]
        rights = (f"{_right([each for each in of_it if each.name.kind == kind]):.3f}" for kind in KINDS)
        rows.append((contestant, *rights, f"{_right(of_it):.3f}", _opened_text(of_it)))
    names = len({(each.site, each.name.kind, each.name.q) for each in outcomes})
    header = ("contestant", *KINDS, "all", "opened right, of those")
    return FigureTable(f"First hit defines the name, {half}: {names} names", header, tuple(rows))


def _sites(half: str, outcomes: Sequence[Outcome]) -> FigureTable:
    contestants = list(dict.fromkeys(each.contestant for each in outcomes))
    rows = []
    for site, named in SITES.items():
        for kind in KINDS:
            of_kind = [each for each in outcomes if (each.site, each.name.kind) == (site, kind)]
            own = [each for each in of_kind if each.contestant == OURS]
            if own:
                others = (_right([each for each in of_kind if each.contestant == other]) for other in contestants)
                rights = (f"{share:.3f}" for share in others)
                rows.append((site, named.style, kind, str(len(own)), *rights, _opened_text(own)))
    header = ("site", "style", "kind", "names", *contestants, "ours, opened right")
    return FigureTable(f"By site, {half}", header, tuple(rows))


def _right(outcomes: Sequence[Outcome]) -> float:
    return sum(each.opened != Opened.WRONG_PAGE for each in outcomes) / max(1, len(outcomes))


def _opened(outcomes: Sequence[Outcome]) -> float:
    """Return how many of the right pages with a fragment in the index open there."""
    right = [each for each in outcomes if each.opened != Opened.WRONG_PAGE and each.name.fragment]
    return sum(each.opened == Opened.RIGHT for each in right) / max(1, len(right))


def _opened_text(outcomes: Sequence[Outcome]) -> str:
    """Return the share as text; empty for a contestant without sections, and for names without a fragment."""
    is_measured = any(each.contestant == OURS and each.name.fragment for each in outcomes)
    return f"{_opened(outcomes):.3f}" if is_measured else ""


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
    for table in shown(run(ROOT / ".perennial" / "bench", {TUNING: False})).tables:
        console.print(table.rich())
