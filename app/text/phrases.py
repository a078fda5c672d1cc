"""Phrases of what people read: durations, names in a list, texts that are cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

#: Units of a duration, with their seconds.
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60))
#: Names that a list has.
MAX_NAMED: Final = 5


def duration(seconds: float) -> str:
    """Return a duration in its largest unit, of which there are at least two: `90 min`, `3 h`, `12 s`."""
    for unit, size in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def listed(names: Sequence[str]) -> str:
    """Return the first MAX_NAMED names, and how many more there are."""
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def cut(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters, with a sign where more follows."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
