"""Natural questions, ranked by words and by words and meaning: the judged ones, and more on other sites."""

from __future__ import annotations

import sqlite3
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from app.search.pack_searcher import PackSearcher
from app.search.query import parse
from app.search.search_settings import NO_SETTINGS, SearchSettings
from benchmarks.errors import BenchmarkError
from benchmarks.figures import FigureTable
from benchmarks.relevance import corpus, judged, measures
from benchmarks.relevance.contestants import path_of
from benchmarks.relevance.judged import JudgedQuery
from benchmarks.relevance.measures import DEPTH, Scores

SETTINGS: Final = {"words": NO_SETTINGS, "words and meaning": SearchSettings(meaning=True)}


def run(folder: Path, *, unseen: bool) -> FigureTable:
    """Return the table of the tuning sites and, with `unseen`, of the sites that are held out."""
    groups = _questions(unseen=unseen)
    packs = corpus.build(dict.fromkeys(each.site for queries in groups.values() for each in queries), folder)
    header = ("questions", "number", "ranked by", "success@1", "MRR@10", "nDCG@10", "MRR, more than by words")
    rows = [row for name, queries in groups.items() for row in _rows(name, queries, packs)]
    return FigureTable("Natural questions", (*header, "nDCG, more", "CPU ms"), tuple(rows))


def sites(*, unseen: bool) -> set[str]:
    """Return the sites of the questions."""
    return {each.site for queries in _questions(unseen=unseen).values() for each in queries}


def _questions(*, unseen: bool) -> dict[str, list[JudgedQuery]]:
    parts: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {"tuning": (judged.TUNING, judged.QUESTIONS_TUNING)}
    if unseen:
        parts["unseen"] = (judged.UNSEEN, judged.QUESTIONS_UNSEEN)
    groups = {}
    for name, (few, more) in parts.items():
        groups[f"{name} sites"] = [each for each in judged.load(few, unseen=unseen) if each.kind == "natural question"]
        groups[f"{name} sites, more"] = judged.load(more, unseen=unseen, folder=judged.QUESTIONS)
        groups[f"{name} sites, all"] = [*groups[f"{name} sites"], *groups[f"{name} sites, more"]]
    return groups


def _rows(name: str, queries: Sequence[JudgedQuery], packs: Mapping[str, Path]) -> Iterator[tuple[str, ...]]:
    _check_paths(queries, packs)
    by_words: list[Scores] = []
    for ranked_by, settings in SETTINGS.items():
        scores, cpu = _ranked(queries, packs, settings)
        by_words = by_words or scores
        rank, ndcg = (
            measures.difference([getattr(each, of) for each in scores], [getattr(each, of) for each in by_words]).text()
            for of in ("reciprocal_rank", "ndcg")
        )
        mean = measures.mean(scores)
        figures = (f"{figure:.3f}" for figure in (mean.success1, mean.reciprocal_rank, mean.ndcg))
        more = ("", "") if scores is by_words else (rank, ndcg)
        yield (name, str(len(queries)), ranked_by, *figures, *more, f"{cpu:.1f}")


def _ranked(
    queries: Sequence[JudgedQuery], packs: Mapping[str, Path], settings: SearchSettings
) -> tuple[list[Scores], float]:
    """Return the scores of the queries, and the median CPU time of one in milliseconds."""
    scores, cpu = [], []
    searchers = {site: PackSearcher(packs[site], time_limit=5.0) for site in {each.site for each in queries}}
    for searcher in searchers.values():
        searcher.apply(settings)
        searcher.search(parse("how is the first question of a searcher answered?"))
    for query in queries:
        began = time.process_time()
        hits = searchers[query.site].search(parse(query.q), limit=DEPTH).hits
        cpu.append(1_000 * (time.process_time() - began))
        scores.append(measures.scores(list(dict.fromkeys(path_of(hit.path) for hit in hits)), query.grades))
    for searcher in searchers.values():
        searcher.close()
    return scores, statistics.median(cpu)


def _check_paths(queries: Sequence[JudgedQuery], packs: Mapping[str, Path]) -> None:
    for site in {each.site for each in queries}:
        with closing(sqlite3.connect(packs[site])) as pack:
            present = {path_of(path) for (path,) in pack.execute("SELECT path FROM pages")}
        unknown = {path for each in queries if each.site == site for path in each.grades} - present
        if unknown:
            raise BenchmarkError(f"{site}: no page {', '.join(sorted(unknown))}")
