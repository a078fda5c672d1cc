"""From typed text to FTS5's MATCH expressions. Typed text is never FTS5 syntax."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from app.errors import InvalidQuery
from app.text.languages import stop_words_in
from app.text.variants import (
    all_parts_of,
    forms_of,
    is_unspaced,
    parts_of,
    stems_of,
    symbols_in,
    unspaced_parts_of,
)
from app.text.words import indexed, normal, spans

#: Characters of a query; search.gov has the same limit.
MAX_CHARACTERS = 255
#: Words of a query, excluded ones counted.
MAX_WORDS = 32

#: Before a phrase that only the words of a page match: not the forms that its pack adds, such as stems.
_AS_WRITTEN = "- {name_forms body_forms} : "
#: Words that must remain without the stop words.
_LEAST_WORDS = 2
#: Phrases from which a query with stop words reads like a sentence.
_SENTENCE = 3
#: Characters of a stem from which words that begin with it are marked.
_SHORTEST_STEM = 3
#: What is left of words such as `what's` and `I'd` after the apostrophe.
_ELIDED = frozenset({"d", "ll", "m", "re", "s", "t", "ve"})
#: Articles, prepositions and pronouns before the apostrophe, in French and Italian: `l'image`, `dell'arte`.
_ELISION = re.compile(
    r"(?:[cdjlmnst]|qu|jusqu|lorsqu|puisqu|quoiqu|un|all|dall|dell|nell|sull|quest|quell)['\u2019](?=\w{2})",
    re.IGNORECASE,
)
#: A version that is written without its first letter, too.
_VERSION = re.compile(r"[vV](\d+)")

#: Phones and word processors write these for the straight quote.
_QUOTES = str.maketrans(dict.fromkeys("“”„‟«»", '"'))
#: A quoted phrase, whose end may be missing, or a run without spaces. A minus directly before it excludes it, unless it
#: is one letter or digit: `-m` is an option of a command.
_CHUNK = re.compile(r'(?P<minus>(?<!\S)-(?=[^\s-]\S|[^\x00-\x7f]))?(?:"(?P<phrase>[^"]*)"?|(?P<run>[^\s"]+))')


@dataclass(frozen=True, slots=True)
class Phrase:
    """Words that must be adjacent, as typed. With `prefix` the last one may be the beginning of a word.

    `quoted` words stand for themselves only, and are not found in other forms of a page's words. So are excluded ones.
    `forms` stand for a single word: each is one or more folded words, all of them required. Words that begin with one
    of `stems` are marked in texts, too. With `symbol`, pages must have this form of the word, which stands for a name
    with signs such as `C++`. Each of `synonyms` stands for the phrase, too.
    """

    words: tuple[str, ...]
    prefix: bool = False
    quoted: bool = False
    forms: tuple[tuple[str, ...], ...] = ()
    stems: tuple[str, ...] = ()
    symbol: str = ""
    synonyms: tuple[Phrase, ...] = ()

    @property
    def match(self) -> str:
        """FTS5 expression of the phrase. With `prefix`, a complete last word counts twice, so it ranks higher."""
        words = " + ".join(f'"{indexed(word)}"' for word in self.words)
        phrase = f'"{self.symbol}"' if self.symbol else f"{_AS_WRITTEN}{words}" if self.quoted else words
        choices = [phrase, *([f"{phrase} *"] if self.prefix and not self.symbol else [])]
        for form in () if self.symbol else self.forms:
            every = " AND ".join(f'"{word}"' for word in form)
            choices.append(f"({every})" if len(form) > 1 else every)
        choices += [synonym.match for synonym in self.synonyms]
        return f"({' OR '.join(choices)})" if len(choices) > 1 else phrase

    @property
    def terms(self) -> tuple[Phrase, ...]:
        """Every word as a phrase by itself."""
        if len(self.words) == 1:
            return (self,)
        *firsts, last = self.words
        return (*(Phrase((word,)) for word in firsts), Phrase((last,), prefix=self.prefix))

    @property
    def alone(self) -> tuple[Phrase, ...]:
        """The phrase, or a word of an unspaced script and its parts: each says something by itself."""
        parts = () if self.quoted or self.symbol or len(self.words) > 1 else unspaced_parts_of(self.words[0])
        return (replace(self, forms=()), *(Phrase((part,)) for part in parts)) if len(parts) > 1 else (self,)

    @property
    def loose_terms(self) -> tuple[Phrase, ...]:
        """What is also searched for where no page has it as typed: names without signs, and parts of words."""
        if self.symbol:
            return (replace(self, symbol=""),)
        if self.quoted:
            return ()
        first, *others = self.words
        unversioned = (Phrase((version[1], *others)),) if (version := _VERSION.fullmatch(first)) else ()
        parts = (part for word in self.words for part in (*parts_of(word), *unspaced_parts_of(word)))
        return (*unversioned, *(Phrase((part,)) for part in parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A parsed query: every one of `phrases` is required, and none of `excluded` may match.

    `word_spans` are start and end in `text` of each of `words`. `typed` are the words with the stop words, which
    `phrases` have not. `unfinished` is whether the text ends with a word character, so that the last word may still be
    typed.
    """

    text: str
    phrases: tuple[Phrase, ...]
    excluded: tuple[Phrase, ...] = ()
    word_spans: tuple[tuple[int, int], ...] = ()
    typed: tuple[str, ...] = ()
    unfinished: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """All required words, in order."""
        return tuple(word for phrase in self.phrases for word in phrase.words)

    @property
    def prefix(self) -> str | None:
        """The last word, if it may be the beginning of a word."""
        return self.phrases[-1].words[-1] if self.phrases[-1].prefix else None

    @property
    def match(self) -> str:
        """FTS5 expression for pages with every phrase and no excluded one."""
        return self.excluding(" AND ".join(phrase.match for phrase in self.phrases))

    @property
    def relaxed_terms(self) -> tuple[Phrase, ...]:
        """Every required word as a phrase by itself, and its loose terms."""
        each = (term for phrase in self.phrases for term in phrase.terms)
        loose = (term for phrase in self.phrases for term in phrase.loose_terms)
        return (*each, *loose)

    @property
    def phrases_alone(self) -> tuple[Phrase, ...]:
        """The phrases. A word of an unspaced script is as many phrases as it has parts."""
        return tuple(each for phrase in self.phrases for each in phrase.alone)

    def any_of(self, phrases: Iterable[Phrase]) -> str:
        """Return the FTS5 expression for pages with at least one of the phrases, and no excluded one."""
        return self.excluding(" OR ".join(phrase.match for phrase in phrases))

    @property
    def is_sentence(self) -> bool:
        """Whether the query reads like a question: it has stop words, several other words, and nothing in quotes."""
        has_stop_words = len(self.typed) > len(self.words)
        return has_stop_words and len(self.phrases) >= _SENTENCE and not any(each.quoted for each in self.phrases)

    @property
    def phrase_match(self) -> str | None:
        """FTS5 expression for all words adjacent; None for a query of one phrase, whose `match` is the same."""
        if len(self.phrases) == 1 and len(self.typed) == len(self.words):
            return None
        return self.excluding(Phrase(self.typed, prefix=self.phrases[-1].prefix).match)

    def with_forms(self, algorithms: Sequence[str]) -> Query:
        """Return the query with other forms of each single word that is not quoted, by these stemming algorithms.

        In unspaced scripts, a quoted or excluded word is found within longer ones: by all its pairs of characters.
        """

        def expanded(phrase: Phrase) -> Phrase:
            if phrase.synonyms:
                phrase = replace(phrase, synonyms=tuple(map(expanded, phrase.synonyms)))
            if phrase.quoted:
                return _within_words(phrase)
            if phrase.symbol or len(phrase.words) > 1:
                return phrase
            (word,) = phrase.words
            stems = tuple(stem for stem in stems_of(word, algorithms) if len(stem) >= _SHORTEST_STEM)
            return replace(phrase, forms=forms_of(word, algorithms), stems=stems)

        excluded = tuple(map(_within_words, self.excluded))
        return replace(self, phrases=tuple(map(expanded, self.phrases)), excluded=excluded)

    def with_words(self, replacements: Mapping[int, str]) -> str:
        """Return the text with some of `words`, named by their index, replaced."""
        text, at = "", 0
        for index, (start, end) in enumerate(self.word_spans):
            text += self.text[at:start] + replacements.get(index, self.text[start:end])
            at = end
        return text + self.text[at:]

    def excluding(self, expression: str) -> str:
        """Return an FTS5 expression without the pages that an excluded phrase matches."""
        if not self.excluded:
            return expression
        return f"({expression}) NOT ({' OR '.join(phrase.match for phrase in self.excluded)})"


def parse(text: str, *, keep_stop_words: bool = False) -> Query:
    """Parse words, "phrases" and -exclusions. The last word may be the beginning of one.

    Stop words outside of quotes are left out if at least two other words remain. Raises InvalidQuery for more than 255
    characters or 32 words, and for a text without a word to search for.
    """
    if len(text) > MAX_CHARACTERS:
        raise InvalidQuery(f"the query has {len(text)} characters; at most {MAX_CHARACTERS} are searched for")
    required: list[tuple[Phrase, list[tuple[int, int]]]] = []
    excluded: list[Phrase] = []
    text = normal(text.replace("\xad", ""))  # Soft hyphens of copied words, which pages have not.
    for chunk in _CHUNK.finditer(text.translate(_QUOTES)):
        kind = "run" if chunk["phrase"] is None else "phrase"
        offset = chunk.start(kind)
        begin = elided.end() if kind == "run" and (elided := _ELISION.match(chunk[kind])) else 0
        in_chunk = [(offset + start, offset + end) for start, end in spans(chunk[kind]) if start >= begin]
        symbols = symbols_in(chunk["run"]) if chunk["run"] and len(in_chunk) == 1 else ()
        phrase = Phrase(
            tuple(text[start:end] for start, end in in_chunk), quoted=kind == "phrase", symbol="".join(symbols[:1])
        )
        if in_chunk and chunk["minus"]:
            excluded.append(replace(phrase, quoted=True))
        elif in_chunk:
            ends_text = in_chunk[-1][1] == len(text)
            # One Latin letter begins half of all words, so it is not worth a prefix search.
            is_selective = len(phrase.words[-1]) > 1 or not phrase.words[-1].isascii()
            required.append((replace(phrase, prefix=ends_text and is_selective and not phrase.symbol), in_chunk))
    _require_searchable(text, [phrase for phrase, _ in required], excluded)
    searched = required if keep_stop_words else _without_stop_words(required)
    return Query(
        text=text,
        phrases=tuple(phrase for phrase, _ in searched),
        excluded=tuple(excluded),
        word_spans=tuple(span for _, in_chunk in searched for span in in_chunk),
        typed=tuple(word for phrase, _ in required for word in phrase.words),
        unfinished=required[-1][1][-1][1] == len(text),
    )


def _without_stop_words(
    required: list[tuple[Phrase, list[tuple[int, int]]]],
) -> list[tuple[Phrase, list[tuple[int, int]]]]:
    runs = [phrase for phrase, _ in required if not phrase.quoted]
    stop_words = stop_words_in([word.lower() for phrase in runs for word in phrase.words]) | _ELIDED
    kept = [
        (phrase, in_chunk)
        for phrase, in_chunk in required
        if phrase.quoted or any(word.lower() not in stop_words for word in phrase.words)
    ]
    return kept if sum(len(phrase.words) for phrase, _ in kept) >= _LEAST_WORDS else required


def _within_words(phrase: Phrase) -> Phrase:
    """Return a phrase that all parts of its word match, too, if that is one word of an unspaced script with pairs.

    Without a pair, such as `第1章`, the letter or digit within it is on too many other pages.
    """
    parts = all_parts_of(phrase.words[0]) if len(phrase.words) == 1 and not phrase.symbol else ()
    return replace(phrase, forms=(parts,)) if any(map(is_unspaced, parts)) else phrase


def _require_searchable(text: str, required: list[Phrase], excluded: list[Phrase]) -> None:
    count = sum(len(phrase.words) for phrase in (*required, *excluded))
    if count > MAX_WORDS:
        raise InvalidQuery(f"the query has {count} words; at most {MAX_WORDS} are searched for")
    if required:
        return
    if excluded:
        raise InvalidQuery("the query only excludes words; add one to look for, or “quote” what begins with a minus")
    if text.strip():
        raise InvalidQuery(f"there is no letter or digit to search for in “{text.strip()}”")
    raise InvalidQuery("the query is empty")
