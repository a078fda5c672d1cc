"""Words of any language, as packs index them: one rule for pages and for queries.

Case, accents, vowel points and the form of a letter or digit make no difference. FTS5 only splits the result at spaces.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import Final

#: Replaces a character that separates words.
GAP: Final = " "
#: Replaces a character without which a word may be written, such as a combining accent.
MARK: Final = "\u0300"

_WORD: Final = re.compile(f"[^{GAP}{MARK}][^{GAP}]*")

_ASCII: Final = bytes(range(0x80))
#: Continuation bytes of UTF-8: without them, a text has one byte for each character.
_CONTINUATION: Final = bytes(range(0x80, 0xC0))
#: Folded bytes of ASCII, the others as they are; and folded bytes of UTF-8 if all other characters separate words.
_FOLDED_ASCII: Final = bytes(
    ord(chr(code).lower() if code >= 0x80 or chr(code).isalnum() else GAP) for code in range(0x80)
) + bytes(range(0x80, 0x100))
_FOLDED: Final = _FOLDED_ASCII[:0x80] + GAP.encode() * 0x80
#: Up to this number of different characters, replacing one after the other is fastest.
_FEW: Final = 60

#: Letters that Unicode does not decompose, as people write them without the letter on their keyboard.
_PLAIN_LETTERS: Final = str.maketrans(
    {"æ": "ae", "œ": "oe", "đ": "d", "ħ": "h", "ı": "i", "ł": "l", "ø": "o", "ŧ": "t"}
)
#: Another letter than и, although Unicode decomposes it.
_SHORT_I: Final = "й"
#: What changes only the look of a word: the line that lengthens an Arabic one, and the joiner of Indic letters.
_DROPPED: Final = "\N{ARABIC TATWEEL}\N{ZERO WIDTH JOINER}"
#: Katakana and Hangul of half width, of which two characters may be one letter.
_HALF_WIDTH: Final = re.compile("[\uff66-\uffdc]+")


def normal(text: str) -> str:
    """Return a text in Unicode's normal form C, in which a letter with its accents is one character where possible."""
    if text.isascii():
        return text
    return _HALF_WIDTH.sub(lambda found: unicodedata.normalize("NFKC", found[0]), unicodedata.normalize("NFC", text))


class _FoldedCharacters(dict[int, str]):
    """Maps the code of a character to what it is in an index: a letter, a digit, a mark, MARK or GAP.

    A character that stands for several letters is itself, and has them in `_spelled`.
    """

    def __missing__(self, code: int) -> str:
        character = chr(code)
        category = unicodedata.category(character)
        if character.isdecimal():
            folded = str(unicodedata.decimal(character))
        elif _is_dropped(character):
            folded = MARK
        elif category in {"Mn", "Mc"} and "VARIATION SELECTOR" not in unicodedata.name(character, ""):
            folded = character  # Vowel signs of Indic scripts are letters in all but name.
        elif category[0] not in "LN":
            folded = GAP
        else:
            plain = unicodedata.normalize("NFKC", character).casefold().translate(_PLAIN_LETTERS)
            if plain != _SHORT_I:
                decomposed = unicodedata.normalize("NFD", plain)
                plain = unicodedata.normalize("NFC", "".join(each for each in decomposed if not _is_dropped(each)))
            folded = plain if plain.isalnum() else character
        if len(folded) > 1:
            _spelled[character], folded = folded, character
        self[code] = folded
        return folded


#: The letters of characters that stand for several; and nothing for MARK.
_spelled: Final = {MARK: ""}
_folded_characters: Final = _FoldedCharacters()


def _is_dropped(character: str) -> bool:
    """Return whether words are the same without a character: accents, and points of Hebrew and Arabic.

    Accents have the combining classes from 200 on, strokes have 1, those points 10 to 36. Marks of other classes make
    other words, such as the vowel signs of Thai.
    """
    combining = unicodedata.combining(character)
    return combining == 1 or 10 <= combining <= 36 or combining >= 200 or character in _DROPPED


def fold(text: str) -> str:
    """Return a text of the same length: letters folded, all other characters GAP or MARK.

    Letters that stand for several, such as `ß`, stay: see `spelled_out`.
    """
    if text.isascii():
        return text.encode().translate(_FOLDED_ASCII).decode()  # Half the time of translating the text itself.
    utf8 = text.encode(errors="surrogatepass")
    # From the bytes, because a set of all characters takes longer.
    others = set(utf8.translate(None, _ASCII).decode(errors="surrogatepass"))
    changed = {each: to for each in others if (to := _folded_characters[ord(each)]) != each}
    if len(changed) == len(others) and set(changed.values()) == {GAP}:
        # Most texts have only quotes and dashes outside ASCII, and translating bytes is many times faster.
        return utf8.translate(_FOLDED, _CONTINUATION).decode()
    if len(changed) > _FEW:
        text = text.translate(_folded_characters)
    else:
        for character, to in changed.items():
            text = text.replace(character, to)
    return text.encode().translate(_FOLDED_ASCII).decode()


def gaps_in(characters: set[str]) -> list[str]:
    """Return those of the characters that separate words."""
    return [each for each in characters if _folded_characters[ord(each)] == GAP]


def spelled_out(folded: str) -> tuple[str, Callable[[int], int]]:
    """Return a folded text without marks, and with letters for those that stand for several: `strasse` of `straße`.

    The second value returns the offset in the folded text for an offset in the first.
    """
    changed = [] if folded.isascii() else [each for each in list(_spelled) if each in folded]
    if not changed:
        return folded, int
    places = [(each.start(), len(_spelled[each[0]]) - 1) for each in re.finditer(f"[{''.join(changed)}]", folded)]
    added = [0, *accumulate(more for _, more in places)]
    ends = [place + before + more + 1 for (place, more), before in zip(places, added, strict=False)]
    for character in changed:
        folded = folded.replace(character, _spelled[character])
    return folded, lambda at: at - added[bisect_right(ends, at)]


def indexed(text: str) -> str:
    """Return what FTS5 indexes of a text. It folds ASCII itself."""
    return text if text.isascii() else spelled_out(fold(text))[0]


def spans(text: str) -> list[tuple[int, int]]:
    """Return start and end of each word of a text."""
    return [match.span() for match in _WORD.finditer(fold(text))]


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text, folded as in the index."""
    return tuple(spelled_out(fold(text))[0].split())
