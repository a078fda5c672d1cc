"""Lines of a page's text in a pack: the character that ends each says whether it is a sentence.

Snippets are cut from sentences. All three characters count as white space for searches and take the place of one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from typing import Final

from app.text.variants import is_unspaced

#: What ends a line: one of sentences, a heading, and anything else such as code, a cell or an entry of a list.
SENTENCE: Final = "\n"
HEADING: Final = "\x1d"
OTHER: Final = "\x1e"
END: Final = re.compile(r"[\n\x1d\x1e]")

_STOP: Final = re.compile(r"""[.!?…。！？।؟۔]['"”’»)\]）」』]*$""")
#: Letters, and beyond Greek also marks: vowel signs of Indic scripts are letters in all but name.
_LETTER: Final = r"A-Za-z\xaa\xb5\xba\xc0-\xd6\xd8-\xf6\xf8-\u1fff\u2c00-\U0010ffff"
_PLAIN: Final = re.compile(rf"(?<!\S)[\"'“‘«(]?[{_LETTER}]+[\"'”’»)]?[,.;:]?(?!\S)")
#: Plain words of a line that ends as a sentence does, and of one that does not; characters where words have no spaces.
_LEAST_WORDS: Final = 4
_MANY_WORDS: Final = 12
_LEAST_UNSPACED: Final = 12


def ended(lines: Iterable[str], *, may_be_sentence: bool, is_heading: bool = False) -> list[str]:
    """Return the lines that are not empty, each with the character that ends it. They have no such character."""
    if is_heading or not may_be_sentence:
        end = HEADING if is_heading else OTHER
        return [line + end for line in lines if line]
    return [line + (SENTENCE if _is_sentence(line) else OTHER) for line in lines if line]


def without_ends(text: str) -> str:
    """Return the text of lines with spaces between them."""
    return spaced(text).rstrip(" ")


def spaced(text: str) -> str:
    """Return the text with a space for each end. `str.translate` takes far longer for a text that is not ASCII."""
    return text.replace(SENTENCE, " ").replace(HEADING, " ").replace(OTHER, " ")


def _is_sentence(line: str) -> bool:
    """Return whether a line has plain words and a stop at its end, or many plain words."""
    if not line.isascii() and is_unspaced(line):
        return len(line) >= _LEAST_UNSPACED and _STOP.search(line) is not None
    spaces = line.count(" ")
    if spaces < _LEAST_WORDS - 1:  # Most lines are shorter: names, links, cells.
        return False
    least = _LEAST_WORDS if _STOP.search(line[-6:]) else _MANY_WORDS
    if spaces < least - 1:
        return False
    # Most lines begin with as many plain words without signs, which takes a tenth of the time to find.
    first = line.split(None, 3 * least)[: 3 * least]
    return sum(map(str.isalpha, first)) >= least or len([*islice(_PLAIN.finditer(line), least)]) == least
