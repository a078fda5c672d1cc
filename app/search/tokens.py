"""The words of a text as FTS5's unicode61 tokenizer sees them: SQLite is asked about each character, once."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections import defaultdict

#: The tokenizer of the packs; it stands in app/pack/schema.sql as well.
TOKENIZER = "unicode61 remove_diacritics 2"
#: What `fold` puts in the place of a character that separates words.
GAP = " "
#: What `fold` puts in the place of a combining mark that the tokenizer drops inside a word.
MARK = "\u0300"

_WORD = re.compile(f"[^{GAP}{MARK}][^{GAP}]*")

_ASCII = bytes(range(0x80))
#: Bytes of UTF-8 after the first of a character: without them, a text has a byte for each character.
_CONTINUATION = bytes(range(0x80, 0xC0))
#: As many different characters are replaced one after the other; more of them in one go.
_FEW = 16


class _Alphabet:
    """Character to folded character, learned from SQLite in batches: its Unicode tables are not Python's.

    `gaps` are the characters seen that separate words.
    """

    def __init__(self) -> None:
        self.table: dict[int, str] = {}
        self.gaps: set[str] = set()
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._connection.executescript(
            f"""CREATE VIRTUAL TABLE probe USING fts5 (text, content = '', tokenize = "{TOKENIZER}");
            CREATE VIRTUAL TABLE probe_words USING fts5vocab (probe, 'instance');"""
        )

    def learn(self, characters: set[str]) -> None:
        """Tokenize `q?z` for each character: one word `q?z` is a letter, `qz` a dropped mark, two words a separator."""
        codes = [ord(character) for character in characters]
        # SQLite stores UTF-8, in which a lone surrogate does not exist.
        probes = [(code, f"q{chr(code)}z") for code in codes if not 0xD800 <= code <= 0xDFFF]
        words: dict[int, list[str]] = defaultdict(list)
        with self._lock:
            self._connection.executemany("INSERT INTO probe (rowid, text) VALUES (?, ?)", probes)
            for code, word in self._connection.execute("SELECT doc, term FROM probe_words"):
                words[code].append(word)
            self._connection.execute("INSERT INTO probe (probe) VALUES ('delete-all')")
            learned = {code: _verdict(words[code]) for code in codes}
            self.table.update(learned)
            self.gaps.update(chr(code) for code, folded in learned.items() if folded == GAP)


def _verdict(words: list[str]) -> str:
    if len(words) != 1:
        return GAP
    return words[0][1:-1] or MARK


_alphabet = _Alphabet()
_alphabet.learn({chr(code) for code in range(0x80)})
#: What becomes of each byte of UTF-8 where all characters that are not ASCII separate words.
_FOLDED = "".join(_alphabet.table.get(byte, GAP) for byte in range(0x100)).encode()


def fold(text: str) -> str:
    """Return a text of the same length: letters folded as in the index, all else GAP or MARK."""
    if text.isascii():
        return text.translate(_alphabet.table)
    utf8 = text.encode(errors="surrogatepass")
    # By the bytes, since a set of a whole text takes longer.
    foreign = set(utf8.translate(None, _ASCII).decode(errors="surrogatepass"))
    if foreign <= _alphabet.gaps:
        # Quotes and dashes are all that is foreign in most texts: bytes are translated many times faster.
        return utf8.translate(_FOLDED, _CONTINUATION).decode()
    _learn_unseen(foreign)
    if len(foreign) <= _FEW:
        # Then all is ASCII as a rule, which Python translates many times faster. What is folded folds to itself.
        for character in foreign:
            text = text.replace(character, _alphabet.table[ord(character)])
    return text.translate(_alphabet.table)


def _learn_unseen(characters: set[str]) -> None:
    unseen = {character for character in characters if ord(character) not in _alphabet.table}
    if unseen:
        _alphabet.learn(unseen)


def spans(text: str) -> list[tuple[int, int]]:
    """Return start and end of each word of a text."""
    return [match.span() for match in _WORD.finditer(fold(text))]


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text, folded as in the index."""
    return tuple(match.group().replace(MARK, "") for match in _WORD.finditer(fold(text)))
