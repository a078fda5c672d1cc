"""The judged set: its paths exist, its unseen part is guarded, and its measures are right."""

from __future__ import annotations

import math
from collections import Counter
from itertools import chain

import pytest

from benchmarks.errors import BenchmarkError
from benchmarks.relevance import judged
from benchmarks.relevance.measures import difference, mean, scores

pytestmark = pytest.mark.unit

MORE = judged.load((*judged.QUESTIONS_TUNING, *judged.QUESTIONS_UNSEEN), unseen=True, folder=judged.QUESTIONS)
ALL = judged.load((*judged.TUNING, *judged.UNSEEN), unseen=True)


def test_every_judged_page_exists_in_its_package() -> None:
    for site in (*judged.TUNING, *judged.UNSEEN):
        graded = set(chain.from_iterable(query.grades for query in ALL if query.site == site))
        assert not graded - judged.paths(site), site


def test_every_query_is_of_a_known_kind_and_has_a_best_page() -> None:
    assert len(ALL) >= 300
    assert {query.kind for query in ALL} == set(judged.KINDS)
    assert {query.kind for query in MORE} == {"natural question"}
    for query in (*ALL, *MORE):
        assert judged.BEST in query.grades.values(), query
        assert set(query.grades.values()) <= {1, 2, 3}, query
    assert max(Counter((query.site, query.q) for query in (*ALL, *MORE)).values()) == 1


@pytest.mark.parametrize("site", sorted({*judged.UNSEEN, *judged.QUESTIONS_UNSEEN}))
def test_the_queries_of_an_unseen_site_are_not_read_by_accident(site: str) -> None:
    with pytest.raises(BenchmarkError, match="held out"):
        judged.load([*judged.TUNING, site])


def test_a_ranking_is_measured_by_its_best_pages_and_by_all_graded_ones() -> None:
    grades = {"a": 3, "b": 2, "c": 1}
    ideal = scores(["a", "b", "c"], grades)
    assert (ideal.success1, ideal.success3, ideal.reciprocal_rank, ideal.ndcg) == (1, 1, 1, 1)
    later = scores(["b", "x", "a"], grades)
    assert (later.success1, later.success3, later.reciprocal_rank) == (0, 1, 1 / 3)
    assert later.ndcg == pytest.approx((3 + 7 / math.log2(4)) / (7 + 3 / math.log2(3) + 1 / math.log2(4)))
    assert mean([ideal, scores([], grades)]).ndcg == 0.5


def test_the_interval_of_a_difference_contains_its_mean() -> None:
    found = difference([1.0, 0.5, 0.0, 1.0], [0.0, 0.5, 0.0, 0.5])
    assert found.low <= found.mean == 0.375 <= found.high
    assert difference([0.5] * 9, [0.25] * 9).text() == "+.250 (+.250 to +.250)"
