"""Run every contestant on the judged queries. `python -m benchmarks.relevance.run` prints the tuning part alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.relevance import corpus, judged, measures, tables
from benchmarks.relevance.contestants import CONTESTANTS, ours_on_all
from benchmarks.relevance.tables import Part
from config.settings import ROOT


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
    for table in tables.shown(run(ROOT / ".perennial" / "bench", unseen=False)).tables:
        console.print(table.rich())
