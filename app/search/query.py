"""A person's words to an FTS5 MATCH expression; nothing a person types is ever FTS5 syntax."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

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
    """What a person asked for: `units` that must all be there, `exclusions` of which none may be.

    `places` are where the text has each of `words`, start and end; it is `unfinished` if it ends inside the last one.
    """

    text: str
    units: tuple[Unit, ...]
    exclusions: tuple[Unit, ...] = ()
    places: tuple[tuple[int, int], ...] = ()
    unfinished: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """All words asked for, in order."""
        return tuple(word for unit in self.units for word in unit.words)

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
        return self._without_exclusions(self.any_match)

    @property
    def any_match(self) -> str:
        """The FTS5 expression for what has some of the words, whatever is excluded."""
        return " OR ".join(unit.match for unit in self.loose_units)

    @property
    def phrase_match(self) -> str | None:
        """The FTS5 expression for all words side by side; None where `match` says so already."""
        if len(self.units) == 1:
            return None
        return self._without_exclusions(Unit(self.words, prefix=self.units[-1].prefix).match)

    @property
    def name_match(self) -> str:
        """The FTS5 expression for names that have all words side by side, none continued."""
        return Unit(self.words).match

    def rewritten(self, replacements: Mapping[int, str]) -> str:
        """Return the text with another word in the place of each of `words` that is named by its number."""
        text, at = "", 0
        for number, (start, end) in enumerate(self.places):
            text += self.text[at:start] + replacements.get(number, self.text[start:end])
            at = end
        return text + self.text[at:]

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
    places: list[tuple[int, int]] = []
    for chunk in _CHUNK.finditer(text.translate(_QUOTES)):
        found = _places(chunk)
        unit = Unit(tuple(text[start:end] for start, end in found))
        if found and chunk["minus"]:
            unwanted.append(unit)
        elif found:
            wanted.append(replace(unit, prefix=found[-1][1] == len(text) and _tells(unit.words[-1])))
            places += found
    _check(text, wanted, unwanted)
    return Query(
        text=text,
        units=tuple(wanted),
        exclusions=tuple(unwanted),
        places=tuple(places),
        unfinished=places[-1][1] == len(text),
    )


def _places(chunk: re.Match[str]) -> list[tuple[int, int]]:
    """Return where the words of a chunk stand in the whole text."""
    kind = "run" if chunk["phrase"] is None else "phrase"
    return [(chunk.start(kind) + start, chunk.start(kind) + end) for start, end in spans(chunk[kind])]


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


def _tells(beginning: str) -> bool:
    """Tell whether it is worth a look which words begin so: with one Latin letter begin half of all words."""
    return len(beginning) > 1 or not beginning.isascii()
