"""Rules that the program is known to break, with the reason. A fault that is fixed reports "passes now"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tests.chaos.ledger import Column, Violation


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """Violations in these columns are known for a fault."""

    columns: frozenset[Column]
    reason: str


#: Known failures by the name of the fault.
KNOWN_FAILURES: Mapping[str, KnownFailure] = {
    "lost-redis": KnownFailure(
        frozenset({"lost", "early", "stuck"}),
        "frontier and timers are in Redis only: a domain without a timer gets no full pack of its crawl",
    ),
    "backlog": KnownFailure(
        frozenset({"early", "stuck"}),
        "TIMER_MAX_WAIT takes open messages for lost after that time without progress, also while workers were away",
    ),
    "moved-clock": KnownFailure(
        frozenset({"lost", "stuck"}),
        "a tick expires by the wall clock: no timer fires where the worker's clock is ahead of beat's",
    ),
}


def is_known(violation: Violation, faults: Iterable[str]) -> bool:
    """Return whether a violation in a round with these faults is a known failure."""
    return any(violation.column in KNOWN_FAILURES[name].columns for name in faults if name in KNOWN_FAILURES)
