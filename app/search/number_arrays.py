"""Arrays of numbers as a pack stores them: one number for each row id, as narrow as the largest one allows."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Final, TypeAlias

#: Names of the widths in Python's `array`: unsigned integers of 1, 2 and 4 bytes.
_WIDTHS: Final = {"B": 2**8 - 1, "H": 2**16 - 1, "I": 2**32 - 1}
LARGEST: Final = _WIDTHS["I"]

Numbers: TypeAlias = "array[int]"


def packed(numbers: Sequence[int]) -> tuple[str, bytes]:
    """Return the width of the numbers and their bytes, little-endian; raises OverflowError above `LARGEST`."""
    most = max(numbers, default=0)
    width = next((width for width, largest in _WIDTHS.items() if most <= largest), "I")
    return width, _little_endian(array(width, numbers)).tobytes()


def unpacked(width: str, data: bytes) -> Numbers:
    """Return the numbers of a pack; raises ValueError for another width or for bytes that are no numbers of it."""
    if width not in _WIDTHS:
        raise ValueError(f"numbers of the width {width!r:.20}")
    return _little_endian(array(width, data))


def _little_endian(numbers: Numbers) -> Numbers:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
