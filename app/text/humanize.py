"""Phrases of what people read: durations, names in a list, texts that are cut."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

#: Units of a duration, with their seconds.
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60))
#: A duration that people write.
_DURATION: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhdw])")
_SECONDS_OF_UNIT: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
#: Names that a list has.
MAX_NAMED: Final = 5


def duration(seconds: float) -> str:
    """Return a duration in its largest unit, of which there are at least two: `90 min`, `3 h`, `12 s`."""
    for unit, size in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def parse_duration(text: str) -> float | None:
    """Return the seconds of a duration such as `90s`, `30m`, `1.5h`, `7d` or `2w`, None for any other text."""
    found = _DURATION.fullmatch(text)
    return float(found[1]) * _SECONDS_OF_UNIT[found[2]] if found else None


def listed(names: Sequence[str]) -> str:
    """Return the first MAX_NAMED names, and how many more there are."""
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def cut(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters, with a sign where more follows."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
