"""Judged queries, by every contestant. `python -m benchmarks.relevance.run` prints the tuning part alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.figures import Aim, FigureTable, MeasuredRow, at_least
from benchmarks.relevance import corpus, judged, measures
from benchmarks.relevance.contestants import CONTESTANTS, OURS, TANTIVY, TANTIVY_FIELDS, ours_on_all
from benchmarks.relevance.judged import KINDS, JudgedQuery
from benchmarks.relevance.measures import Difference, Scores
from config.settings import ROOT

#: nDCG@10 above tantivy's on the unseen sites; and MRR there by kind.
NDCG_AIM = 0.08
RANK_AIMS = {"natural question": 0.75, "misspelling": 0.75, "inflection": 0.90}

METHOD = """\
- Relevance: queries over documentation sites, with graded pages that were written down before any ranking was tried. A
  page of grade 3 is the one looked for; success and MRR count only such pages. nDCG counts all three grades. Only this
  benchmark with `--unseen` reads the queries of the unseen sites.
- All contestants search the same extracted text of the same packs. *tantivy* has title, headings and body with the
  boosts 5, 2 and 1, the language's stemmer, and any of the words. *tantivy, our fields* has every field of text that a
  pack has, with our weights. *FTS5 porter* has tantivy's fields and boosts. Signs of tantivy's query language are left
  out of the queries.
- *All sites at once*: the query is searched on all sites of its part, those of the unseen part with the tuning sites.
  Pages of other sites count as wrong.
- *Natural questions*: more of them, on other sites, too. They are searched as typed, by words, and with the site's
  setting `meaning`. The CPU time is the median.
- A difference is the mean over the queries, with the 95 % interval of a paired bootstrap (2,000 resamples).
"""

Select = Callable[[JudgedQuery], bool]


@dataclass(frozen=True, slots=True)
class Part:
    """The queries of one part of the judged set, and the scores of each contestant in the same order.

    `together` are our scores where all sites are searched at once.
    """

    name: str
    queries: Sequence[JudgedQuery]
    scores: Mapping[str, Sequence[Scores]]
    together: Sequence[Scores]


def shown(parts: Sequence[Part]) -> MeasuredRow:
    """Return the tables of each part, and the aims, which are for the unseen sites."""
    tables = (_contestants, _by_kind, _differences, _by_site)
    aims = tuple(row for part in parts if part.name == "unseen sites" for row in _aims(part))
    return MeasuredRow(aims, tuple(make(part) for part in parts for make in tables))


def _aims(part: Part) -> Iterator[Aim]:
    against = _difference(part, TANTIVY, _any)
    figure = "nDCG@10 on the unseen sites, ours minus tantivy's"
    yield figure, f"+{NDCG_AIM:g}, above 0", against.text(), _verdict(against.mean >= NDCG_AIM and against.low > 0)
    against = _difference(part, TANTIVY_FIELDS, _any)
    yield "the same, tantivy with our fields", ">= 0", against.text(), _verdict(against.mean >= 0)
    for kind, aim in RANK_AIMS.items():
        rank = _mean(part, OURS, _of_kind(kind)).reciprocal_rank
        yield at_least(f"MRR on the unseen sites, {kind}", aim, rank, digits=3)


def _verdict(reached: bool) -> str:
    return "reached" if reached else "not reached"


def _contestants(part: Part) -> FigureTable:
    rows = []
    for name in part.scores:
        score = _mean(part, name, _any)
        against = "" if name == OURS else _difference(part, name, _any).text()
        rows.append((name, *_three(score.success1, score.success3, score.reciprocal_rank, score.ndcg), against))
    header = ("contestant", "success@1", "success@3", "MRR@10", "nDCG@10", "nDCG, ours minus its")
    return FigureTable(f"Relevance, {part.name}: {len(part.queries)} queries", header, tuple(rows))


def _by_kind(part: Part) -> FigureTable:
    rows = []
    for kind, select in _kinds(part):
        means = [_mean(part, name, select) for name in part.scores]
        own = means[0]
        count = str(sum(map(select, part.queries)))
        first = _three(own.success1, own.success3)
        rows.append((kind, count, *first, *_three(*(each.reciprocal_rank for each in means))))
    header = ("kind", "queries", "ours, success@1", "success@3", *(f"MRR, {name}" for name in part.scores))
    return FigureTable(f"By kind, {part.name}", header, tuple(rows))


def _differences(part: Part) -> FigureTable:
    others = [name for name in part.scores if name != OURS]
    rows = []
    for kind, select in _kinds(part):
        own = f"{_mean(part, OURS, select).ndcg:.3f}"
        rows.append((kind, own, *(_difference(part, name, select).text() for name in others)))
    header = ("kind", "ours, nDCG@10", *(f"minus {name}" for name in others))
    return FigureTable(f"nDCG@10 by kind, {part.name}", header, tuple(rows))


def _by_site(part: Part) -> FigureTable:
    rows = []
    for site in dict.fromkeys(query.site for query in part.queries):
        means = [_mean(part, name, _of_site(site)).ndcg for name in part.scores]
        pairs = zip(part.queries, part.together, strict=True)
        together = measures.mean([score for query, score in pairs if query.site == site]).ndcg
        rows.append((site, str(sum(query.site == site for query in part.queries)), *_three(*means, together)))
    header = ("site", "queries", *(f"nDCG, {name}" for name in part.scores), "ours, all sites at once")
    return FigureTable(f"By site, {part.name}", header, tuple(rows))


def _any(query: JudgedQuery) -> bool:
    del query
    return True


def _of_kind(kind: str) -> Select:
    return lambda query: query.kind == kind


def _of_site(site: str) -> Select:
    return lambda query: query.site == site


def _kinds(part: Part) -> Iterator[tuple[str, Select]]:
    present = {query.kind for query in part.queries}
    for kind in KINDS:
        if kind in present:
            yield kind, _of_kind(kind)


def _selected(part: Part, name: str, select: Select) -> list[Scores]:
    return [score for query, score in zip(part.queries, part.scores[name], strict=True) if select(query)]


def _mean(part: Part, name: str, select: Select) -> Scores:
    return measures.mean(_selected(part, name, select))


def _difference(part: Part, name: str, select: Select) -> Difference:
    own, other = (_selected(part, each, select) for each in (OURS, name))
    return measures.difference([each.ndcg for each in own], [each.ndcg for each in other])


def _three(*figures: float) -> tuple[str, ...]:
    return tuple(f"{figure:.3f}" for figure in figures)


def run(folder: Path, *, unseen: bool) -> list[Part]:
    """Return the scores on the tuning sites and, with `unseen`, on the sites that are held out."""
    parts = [_part("tuning sites", judged.TUNING, folder)]
    return [*parts, _part("unseen sites", judged.UNSEEN, folder, unseen=True)] if unseen else parts


def _part(name: str, sites: Sequence[str], folder: Path, *, unseen: bool = False) -> Part:
    queries = judged.load(sites, unseen=unseen)
    packs = corpus.build(sites, folder)
    scores = {}
    for contestant, make in CONTESTANTS.items():
        rank = {site: make(pack, site) for site, pack in packs.items()}
        scores[contestant] = [measures.scores(rank[query.site](query.q), query.grades) for query in queries]
    everywhere = ours_on_all(corpus.build(dict.fromkeys((*judged.TUNING, *sites)), folder))
    together = [measures.scores(everywhere(query.q, query.site), query.grades) for query in queries]
    return Part(name, queries, scores, together)


if __name__ == "__main__":
    console = Console()
    for table in shown(run(ROOT / ".perennial" / "bench", unseen=False)).tables:
        console.print(table.rich())
