"""Measures of a ranking against graded judgements, and the interval of a mean difference."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.relevance.judged import BEST

#: Results of a query that count.
DEPTH = 10
#: Resamples of the bootstrap, its seed, and the share of them outside of the interval at either end.
_RESAMPLES = 2_000
_SEED = 15
_OUTSIDE = 0.025


@dataclass(frozen=True, slots=True)
class Scores:
    """Measures of one ranking: whether a best page is first, and among three; its reciprocal rank; and nDCG@10."""

    success1: float
    success3: float
    reciprocal_rank: float
    ndcg: float


@dataclass(frozen=True, slots=True)
class Difference:
    """A mean difference with the ends of its 95 % interval."""

    mean: float
    low: float
    high: float

    def text(self) -> str:
        """Return `+.08 (+.03 to +.12)`."""
        return f"{_signed(self.mean)} ({_signed(self.low)} to {_signed(self.high)})"


def scores(ranked: Sequence[str], grades: Mapping[str, int]) -> Scores:
    """Return the measures of a ranking of paths, given the grades of the judged ones."""
    found = [grades.get(path, 0) for path in ranked[:DEPTH]]
    rank = next((at for at, grade in enumerate(found, 1) if grade == BEST), math.inf)
    ideal = _gain(sorted(grades.values(), reverse=True)[:DEPTH])
    return Scores(float(rank == 1), float(rank <= 3), 1 / rank, _gain(found) / ideal)


def mean(each: Sequence[Scores]) -> Scores:
    """Return the mean of each measure."""
    return Scores(*(statistics.fmean(getattr(one, name) for one in each) for name in Scores.__slots__))


def difference(own: Sequence[float], others: Sequence[float]) -> Difference:
    """Return the mean difference of two figures of the same queries, with the interval of a paired bootstrap."""
    pairs = [a - b for a, b in zip(own, others, strict=True)]
    chance = random.Random(_SEED)
    means = sorted(statistics.fmean(chance.choices(pairs, k=len(pairs))) for _ in range(_RESAMPLES))
    return Difference(
        statistics.fmean(pairs), means[int(_OUTSIDE * _RESAMPLES)], means[int((1 - _OUTSIDE) * _RESAMPLES) - 1]
    )


def _gain(grades: Sequence[int]) -> float:
    """Return the discounted cumulative gain: a page of the grade g is worth 2^g - 1."""
    return sum((2.0**grade - 1) / math.log2(at + 1) for at, grade in enumerate(grades, 1))


def _signed(number: float) -> str:
    return f"{number:+.3f}".replace("0.", ".", 1)
