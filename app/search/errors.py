"""Which error of ours each fault of an answer is."""

from __future__ import annotations

from app.errors import (
    InvalidQuery,
    NotPlaced,
    PackCorrupt,
    PackNotFound,
    PerennialError,
    SearcherBusy,
    SearchTimeout,
)
from app.search.messages import Fault, Problem

_ERRORS: dict[Fault, type[PerennialError]] = {
    "invalid-query": InvalidQuery,
    "never-indexed": PackNotFound,
    "not-placed": NotPlaced,
    "not-here": NotPlaced,
    "timeout": SearchTimeout,
    "busy": SearcherBusy,
    "broken": PackCorrupt,
}


def error_of(problem: Problem) -> PerennialError:
    """Return what whoever asked raises."""
    return _ERRORS[problem.fault](problem.detail)
