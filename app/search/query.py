"""A person's words to an FTS5 MATCH expression; nothing a person types is ever FTS5 syntax."""

from __future__ import annotations

import re
from dataclasses import dataclass

from app.errors import InvalidQuery
from app.search.tokens import spans

#: Characters of a query; as search.gov has it.
MAX_CHARACTERS = 255
#: Words of a query, excluded ones counted.
MAX_WORDS = 32

#: Phones and word processors write these for the straight quote.
_QUOTES = str.maketrans(dict.fromkeys("“”„‟«»", '"'))
#: A quoted phrase (its end may still be missing) or a run without spaces; a lone minus directly before it excludes it.
_CHUNK = re.compile(r'(?P<minus>(?<!\S)-(?=[^\s-]))?(?:"(?P<phrase>[^"]*)"?|(?P<run>[^\s"]+))')


@dataclass(frozen=True, slots=True)
class Unit:
    """Words that must stand side by side, as typed; with `prefix` the last one may go on."""

    words: tuple[str, ...]
    prefix: bool = False

    @property
    def match(self) -> str:
        """The unit as an FTS5 phrase. A word to be continued counts twice where it stands as it is."""
        phrase = " + ".join(f'"{word}"' for word in self.words)
        return f"({phrase} OR {phrase} *)" if self.prefix else phrase


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What a person asked for: `units` that must all be there, `exclusions` of which none may be."""

    text: str
    units: tuple[Unit, ...]
    exclusions: tuple[Unit, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """All words asked for, in order."""
        return tuple(word for unit in self.units for word in unit.words)

    @property
    def terms(self) -> tuple[str, ...]:
        """The words that stand alone."""
        return tuple(unit.words[0] for unit in self.units if len(unit.words) == 1)

    @property
    def phrases(self) -> tuple[tuple[str, ...], ...]:
        """The words that must stand side by side: quoted, or joined as in `os.path`."""
        return tuple(unit.words for unit in self.units if len(unit.words) > 1)

    @property
    def prefix(self) -> str | None:
        """The last word, if it may go on."""
        return self.units[-1].words[-1] if self.units[-1].prefix else None

    @property
    def match(self) -> str:
        """The FTS5 expression: every unit, no exclusion."""
        return self._without_exclusions(" AND ".join(unit.match for unit in self.units))

    @property
    def loose_units(self) -> tuple[Unit, ...]:
        """Every word for itself."""
        *firsts, last = self.words
        return (*(Unit((word,)) for word in firsts), Unit((last,), prefix=self.units[-1].prefix))

    @property
    def loose_match(self) -> str | None:
        """The FTS5 expression for pages with some of the words; None where that asks nothing less."""
        if len(self.words) == 1:
            return None
        return self._without_exclusions(" OR ".join(unit.match for unit in self.loose_units))

    @property
    def phrase_match(self) -> str | None:
        """The FTS5 expression for all words side by side; None where `match` says so already."""
        if len(self.units) == 1:
            return None
        return self._without_exclusions(Unit(self.words, prefix=self.units[-1].prefix).match)

    @property
    def name_match(self) -> str:
        """The FTS5 expression for pages that have all words side by side in a title or heading, none continued."""
        return self._without_exclusions(f"{{title headings}} : ({Unit(self.words).match})")

    def _without_exclusions(self, expression: str) -> str:
        if not self.exclusions:
            return expression
        return f"({expression}) NOT ({' OR '.join(unit.match for unit in self.exclusions)})"


def parse(text: str) -> Query:
    """Read a query: words, "phrases", -exclusions; the last word may be the beginning of one.

    Raises InvalidQuery for more than 255 characters or 32 words, and where there is nothing to search for.
    """
    if len(text) > MAX_CHARACTERS:
        raise InvalidQuery(f"the query has {len(text)} characters; at most {MAX_CHARACTERS} are searched for")
    wanted: list[Unit] = []
    unwanted: list[Unit] = []
    for chunk in _CHUNK.finditer(text.translate(_QUOTES)):
        found = _words(chunk["phrase"] or chunk["run"] or "")
        if found and chunk["minus"]:
            unwanted.append(Unit(found))
        elif found:
            wanted.append(Unit(found, prefix=_goes_on(text, chunk, found[-1])))
    _check(text, wanted, unwanted)
    return Query(text=text, units=tuple(wanted), exclusions=tuple(unwanted))


def _words(text: str) -> tuple[str, ...]:
    return tuple(text[start:end] for start, end in spans(text))


def _check(text: str, wanted: list[Unit], unwanted: list[Unit]) -> None:
    count = sum(len(unit.words) for unit in (*wanted, *unwanted))
    if count > MAX_WORDS:
        raise InvalidQuery(f"the query has {count} words; at most {MAX_WORDS} are searched for")
    if wanted:
        return
    if unwanted:
        raise InvalidQuery("the query only excludes words; add one to look for, or “quote” what begins with a minus")
    if text.strip():
        raise InvalidQuery(f"there is no letter or digit to search for in “{text.strip()}”")
    raise InvalidQuery("the query is empty")


def _goes_on(text: str, chunk: re.Match[str], last: str) -> bool:
    """Tell whether the text ends inside a word: one Latin letter would begin half of all words, and says nothing."""
    return chunk.end() == len(text) and text.endswith(last) and (len(last) > 1 or not last.isascii())
