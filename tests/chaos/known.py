"""Rules that the program is known to break, with the reason. A fault that is fixed reports "passes now"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tests.chaos.ledger import FIRST_PACK, FULL_PACK, LAST_PACK, Violation


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """Violations of these rules are known for a fault."""

    rules: frozenset[str]
    reason: str


#: Known failures by the name of the fault.
KNOWN_FAILURES: Mapping[str, KnownFailure] = {
    "lost-redis": KnownFailure(
        frozenset({LAST_PACK, FIRST_PACK, FULL_PACK}),
        "frontier and timers are in Redis only: a domain without a timer gets no full pack of its crawl",
    ),
    "backlog": KnownFailure(
        frozenset({FIRST_PACK, FULL_PACK}),
        "TIMER_MAX_WAIT takes open messages for lost after that time without progress, also while workers were away",
    ),
    "power": KnownFailure(
        frozenset({FIRST_PACK, FULL_PACK}),
        "a restart that takes longer than TIMER_MAX_WAIT is a backlog: open messages are taken for lost",
    ),
}


def is_known(violation: Violation, faults: Iterable[str]) -> bool:
    """Return whether a violation in a round with these faults is a known failure."""
    return any(violation.rule in KNOWN_FAILURES[name].rules for name in faults if name in KNOWN_FAILURES)
