"""Split and fold a text exactly as FTS5's unicode61 tokenizer does, by asking SQLite once about each character."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections import defaultdict

#: The tokenizer of the packs, as in app/pack/schema.sql.
TOKENIZER = "unicode61 remove_diacritics 2"
#: Replaces a character that separates words.
GAP = " "
#: Replaces a combining mark, which the tokenizer drops inside a word.
MARK = "\u0300"

_WORD = re.compile(f"[^{GAP}{MARK}][^{GAP}]*")

_ASCII = bytes(range(0x80))
#: Continuation bytes of UTF-8: without them, a text has one byte for each character.
_CONTINUATION = bytes(range(0x80, 0xC0))
#: Up to this number of different characters, replacing them one after the other is fastest.
_FEW = 16


class _FoldingTable:
    """Maps characters to folded characters, learned from SQLite in batches: its Unicode tables differ from Python's.

    `gaps` are the learned characters that separate words.
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
        """Tokenize `q?z` for each character: the word `q?z` is a letter, `qz` a dropped mark, two words a separator."""
        codes = [ord(character) for character in characters]
        # SQLite stores UTF-8, which has no lone surrogates.
        probes = [(code, f"q{chr(code)}z") for code in codes if not 0xD800 <= code <= 0xDFFF]
        words: dict[int, list[str]] = defaultdict(list)
        with self._lock:
            self._connection.executemany("INSERT INTO probe (rowid, text) VALUES (?, ?)", probes)
            for code, word in self._connection.execute("SELECT doc, term FROM probe_words"):
                words[code].append(word)
            self._connection.execute("INSERT INTO probe (probe) VALUES ('delete-all')")
            learned = {code: (words[code][0][1:-1] or MARK) if len(words[code]) == 1 else GAP for code in codes}
            self.table.update(learned)
            self.gaps.update(chr(code) for code, folded in learned.items() if folded == GAP)


_folding = _FoldingTable()
_folding.learn({chr(code) for code in range(0x80)})
#: Folded bytes of UTF-8 if every character outside ASCII separates words.
_FOLDED = "".join(_folding.table.get(byte, GAP) for byte in range(0x100)).encode()


def fold(text: str) -> str:
    """Return a text of the same length: letters folded as in the index, all other characters GAP or MARK."""
    if text.isascii():
        return text.translate(_folding.table)
    utf8 = text.encode(errors="surrogatepass")
    # From the bytes, because a set of all characters takes longer.
    non_ascii = set(utf8.translate(None, _ASCII).decode(errors="surrogatepass"))
    if non_ascii <= _folding.gaps:
        # Most texts have only quotes and dashes outside ASCII, and translating bytes is many times faster.
        return utf8.translate(_FOLDED, _CONTINUATION).decode()
    if unseen := {character for character in non_ascii if ord(character) not in _folding.table}:
        _folding.learn(unseen)
    if len(non_ascii) <= _FEW:
        # The result is usually ASCII, which Python translates many times faster. A folded character folds to itself.
        for character in non_ascii:
            text = text.replace(character, _folding.table[ord(character)])
    return text.translate(_folding.table)


def spans(text: str) -> list[tuple[int, int]]:
    """Return start and end of each word of a text."""
    return [match.span() for match in _WORD.finditer(fold(text))]


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text, folded as in the index."""
    return tuple(match.group().replace(MARK, "") for match in _WORD.finditer(fold(text)))
