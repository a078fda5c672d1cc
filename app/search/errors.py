"""Errors as faults of an answer, and faults as the errors of whoever asked: one table for both ways."""

from __future__ import annotations

from app.broker.errors import ApplicationError, InvalidMessage, SearcherBusy, Undecodable, UnknownType
from app.cluster.protocol import Fault, Problem
from app.errors import InvalidQuery, NotHere, NotPlaced, PackCorrupt, PackNotFound, SearchTimeout, SearchUnavailable

#: A searcher that has no such pack comes before nobody having it: it is a kind of that.
_ERRORS: dict[Fault, type[ApplicationError]] = {
    "invalid-query": InvalidQuery,
    "never-indexed": PackNotFound,
    "not-here": NotHere,
    "not-placed": NotPlaced,
    "timeout": SearchTimeout,
    "busy": SearcherBusy,
    "broken": PackCorrupt,
}
#: Errors that whoever asked need not tell from those above.
_LIKEWISE: dict[type[ApplicationError], Fault] = {
    InvalidMessage: "invalid-query",
    Undecodable: "invalid-query",
    UnknownType: "invalid-query",
    SearchUnavailable: "not-placed",
}
_FAULTS: dict[type[ApplicationError], Fault] = {error: fault for fault, error in _ERRORS.items()} | _LIKEWISE


def error_of(problem: Problem) -> ApplicationError:
    """Return what whoever asked raises."""
    return _ERRORS[problem.fault](problem.detail)


def problem_of(error: Exception, *, whose: str) -> Problem:
    """Return what whoever asked is told; of an error that is none of ours, only in `whose` log it stands."""
    fault: Fault = next((fault for kind, fault in _FAULTS.items() if isinstance(error, kind)), "broken")
    detail = str(error) if isinstance(error, ApplicationError) else f"the {whose} failed; its log says more"
    # What was asked for may stand in it, and be no text that can be sent.
    return Problem(fault=fault, detail=detail.encode(errors="replace").decode())
