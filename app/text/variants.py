"""Other forms of words: stems, parts of compound names, names with signs, pairs of characters without spaces.

A pack indexes the forms that a page's words have besides those that it contains; a query looks for both.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from Stemmer import Stemmer

from app.text.languages import STOP_WORDS_BY_ALGORITHM
from app.text.words import gaps_in, indexed

#: Scripts whose words are not separated, first those with alphabets: Thai, Lao, Myanmar and Khmer; then kana, Han and
#: Hangul. 々, 〆 and 〇 are written like Han characters.
_ALPHABETS: Final = "\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff"
_UNSPACED: Final = re.compile(
    f"[{_ALPHABETS}]+|[\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff]+"
)
_ALPHABET: Final = re.compile(f"[{_ALPHABETS}]")
#: Characters of a part of a word in such a script: two letters of an alphabet are on most pages.
_LETTERS_OF_PART: Final = 3
_CHARACTERS_OF_PART: Final = 2
#: Pairs of characters that are grammar in Japanese. They begin with hiragana, of which endings consist, or end with a
#: particle. After katakana any hiragana is one.
_GRAMMAR: Final = re.compile("[\u3040-\u309f].|[\u30a0-\u30ff][\u3040-\u309f]|.[をのはへにとでもが]")
_WORD: Final = re.compile(r"[^\W_]+")
#: What separates words of ASCII becomes a space.
_ASCII: Final = bytes(range(128))
_SEPARATORS: Final = {code: " " for code in _ASCII if not chr(code).isalnum()}
_SEPARATED: Final = bytes(ord(_SEPARATORS.get(code, chr(code))) for code in range(256))
#: Different signs outside ASCII, up to which each is replaced by a space.
_FEW: Final = 32
#: Where a capital follows a small letter, as in `OrderedDict`, and the parts of such a name.
_COMPOUND: Final = re.compile("[a-z][A-Z]")
_PART: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
#: Signs at which names such as `C++`, `C#` and `.NET` end or begin: tokenizers drop the signs.
_SIGNS: Final = {"++": "plusplus", "#": "sharp"}
#: From the signs, which are rare: `re` finds each of them quickly, but not any of them. Names are searched backwards.
_SIGNS_AT_END: Final = {signs: re.compile(rf"{re.escape(signs)}(?![\w+#])") for signs in _SIGNS}
_LONGEST_NAME: Final = 10
_NAME_BEFORE: Final = re.compile(rf"(?<![^\W_])[^\W\d_][^\W_]{{,{_LONGEST_NAME - 1}}}$")
_DOTNET: Final = re.compile(r"\.net\b(?<![\w.]....)", re.IGNORECASE)
#: Characters of a word that is stemmed, and of a form that is worth indexing.
_LONGEST: Final = 40
_SHORTEST: Final = 2
#: Words that are remembered of one language.
_MEMORY: Final = 200_000
#: Words that a thread remembers from one pack to the next.
_MEMORY_BETWEEN_PACKS: Final = 20_000
#: Pairs of characters of one word of a query.
_MAX_PAIRS: Final = 16
#: Letters and digits of another script that are one part with the character beside them, as in `2026年`.
_LONGEST_BESIDE: Final = 4


@dataclass(slots=True, eq=False)
class Word:
    """A word as a text has it, with what is indexed of it. Several forms are one string, with spaces between.

    To split many joined strings takes a quarter of the time of a union of many sequences.
    """

    #: As it is indexed.
    folded: str
    #: Its other forms.
    forms: str
    #: What stands for it in an index of stems, unless it is a stop word of a text.
    stems: str
    is_stop_word: bool


class _Memory(dict[str, Word]):
    """Remembers words of a language as they are written. It is looked up without a step of Python's for each word."""

    def __init__(self, algorithm: str) -> None:
        super().__init__()
        # Without its own memory, the library stems a new word in less than half the time.
        self._stem = Stemmer(algorithm, 0).stemWord if algorithm else str
        self._stop_words = STOP_WORDS_BY_ALGORITHM.get(algorithm, frozenset())
        #: Whether several stems stand for one of these words.
        self.have_several = False

    def of_all(self, words: Iterable[str]) -> list[Word]:
        """Return the words that are written so."""
        if len(self) > _MEMORY:
            self.clear()
        return list(map(self.__getitem__, words))

    def __missing__(self, written: str) -> Word:
        lower = written.lower()
        folded = indexed(lower)
        # Snowball's rules are for letters with their accents.
        stem = indexed(self._stem(lower)) if len(lower) <= _LONGEST else ""
        unspaced = () if folded.isascii() else (*_parts(folded), *_parts_at_edges(folded))
        # Snowball leaves nothing of some words, such as the Greek "εις".
        stems = unspaced or (stem or folded,)
        self.have_several = self.have_several or len(stems) > 1
        others = (*(parts_of(written) if lower != written else ()), stem)
        # The parts of a word without spaces count, however short they are: `c` of `C言語`.
        forms = (*unspaced, *(form for form in others if form != folded and len(form) >= _SHORTEST))
        folded = _one_of(folded, written)
        joined = _one_of(" ".join(stems), folded)
        word = self[written] = Word(folded, _one_of(" ".join(forms), joined), joined, lower in self._stop_words)
        return word


class Variants:
    """Finds the forms of words in one language, given by Snowball's name. For one thread: it remembers words."""

    def __init__(self, algorithm: str) -> None:
        """Without an algorithm, words have no stems."""
        self._words = _Memory(algorithm)

    @property
    def remembered(self) -> int:
        """Number of words."""
        return len(self._words)

    def words_in(self, text: str) -> list[Word]:
        """Return the words of a text, in order."""
        return self._words.of_all(_written_words(text))

    def of(self, text: str) -> str:
        """Return the forms of a text's words that are not themselves words of the text, each once."""
        return forms_of_all(self.words_in(text), symbols_in(text))

    def stems_of_all(self, words: Iterable[Word]) -> list[str]:
        """Return what stands for each of these words of a text in an index of stems, without stop words."""
        stems = [word.stems for word in words if not word.is_stop_word]
        return " ".join(stems).split() if self._words.have_several else stems

    def stems_in_name(self, name: str) -> list[str]:
        """Return the same for a name, with its stop words, parts of compounds and words with signs."""
        written = _written_words(name)
        if _COMPOUND.search(name):  # Most names have no parts.
            written += [part for word in written for part in parts_of(word)]
        words = self._words.of_all(written)
        return [*" ".join([word.stems for word in words]).split(), *symbols_in(name)]


def _one_of(text: str, other: str) -> str:
    """Return an equal one that is there already: most words have one form, and most forms are equal to a word."""
    return other if text == other else text


def forms_of_all(words: Iterable[Word], symbols: Iterable[str] = ()) -> str:
    """Return those forms of a text's words, and those of its `symbols_in`, that are not its words, each once."""
    different = set(words)
    forms = {*" ".join([word.forms for word in different]).split(), *symbols}
    return " ".join(sorted(forms.difference([word.folded for word in different])))


class VariantsByAlgorithm(dict[str, Variants]):
    """Finds the forms of words of pages in any language, by Snowball's name of it."""

    def __missing__(self, algorithm: str) -> Variants:
        self[algorithm] = Variants(algorithm)
        return self[algorithm]


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.variants = VariantsByAlgorithm()


_of_thread: Final = _OfThread()


def remembered_variants() -> VariantsByAlgorithm:
    """Return what this thread has used before: most words of a small site are in others. Many words are forgotten."""
    if sum(each.remembered for each in _of_thread.variants.values()) > _MEMORY_BETWEEN_PACKS:
        _of_thread.variants = VariantsByAlgorithm()
    return _of_thread.variants


def _written_words(text: str) -> list[str]:
    if text.isascii():
        return text.translate(_SEPARATORS).split()
    # Most texts have only quotes and dashes outside ASCII, and translating bytes is many times faster.
    data = text.encode(errors="surrogatepass")
    others = set(data.translate(None, _ASCII).decode(errors="surrogatepass"))
    signs = gaps_in(others)
    if len(signs) == len(others):
        data, signs = text.encode("ascii", errors="replace"), []  # A question mark separates words, too.
    if len(signs) > _FEW:
        return text.translate(dict.fromkeys(map(ord, signs), " ") | _SEPARATORS).split()
    for sign in signs:
        data = data.replace(sign.encode(errors="surrogatepass"), b" ")
    return data.translate(_SEPARATED).decode(errors="surrogatepass").split()


def symbols_in(text: str) -> tuple[str, ...]:
    """Return a word for each name in a text that ends or begins with signs, once: `cplusplus`, `csharp`, `dotnet`."""
    found: dict[str, None] = {}
    # Most texts have none, which `in` finds out in a fraction of the time.
    ends = [each for signs, at_end in _SIGNS_AT_END.items() if signs in text for each in at_end.finditer(text)]
    for signs in sorted(ends, key=re.Match.start):
        before = text[max(0, signs.start() - _LONGEST_NAME - 1) : signs.start()]
        if name := _NAME_BEFORE.search(before):
            found[name.group().casefold() + _SIGNS[signs.group()]] = None
    # Bytes have their capitals of ASCII only, which takes a tenth of the time.
    if b".net" in text.encode(errors="surrogatepass").lower() and _DOTNET.search(text):
        found["dotnet"] = None
    return tuple(found)


def parts_of(word: str) -> tuple[str, ...]:
    """Return the parts of a compound name, in lower case: `ordered` and `dict` of `OrderedDict`."""
    return tuple(part.lower() for part in _PART.findall(word)) if _COMPOUND.search(word) else ()


def forms_of(word: str, algorithms: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Return what else stands for a typed word: each form is one or more words that a page must all have."""
    folded = indexed(word.lower())
    if len(word) > _LONGEST:
        return ()
    if parts := unspaced_parts_of(folded):
        return (parts,) if parts != (folded,) else ()
    return tuple((stem,) for stem in stems_of(word, algorithms) if stem != folded and len(stem) >= _SHORTEST)


def is_unspaced(word: str) -> bool:
    """Return whether a word has characters of a script whose words are not separated."""
    return not word.isascii() and _UNSPACED.search(word) is not None


def unspaced_parts_of(word: str) -> tuple[str, ...]:
    """Return what a typed word of an unspaced script is looked for by: its pairs of characters, but not its grammar.

    A word without such a pair, as `第1章`, is looked for by `第1` and `1章`: its `1` is on most pages.
    Other words have no such parts.
    """
    word = indexed(word)
    every = tuple(dict.fromkeys(_parts(word)))
    parts = tuple(part for part in every if not _GRAMMAR.fullmatch(part)) or every
    if not any(map(is_unspaced, parts)):
        parts = tuple(part for part in _parts_at_edges(word) if not _GRAMMAR.fullmatch(part)) or parts
    return parts[:_MAX_PAIRS]


def all_parts_of(word: str) -> tuple[str, ...]:
    """Return the same with its grammar: what a page has that has the word as it is written."""
    folded = indexed(word)
    return tuple(dict.fromkeys((*_parts(folded), *_parts_at_edges(folded))))[:_MAX_PAIRS]


def index_stems_of(word: str, algorithms: Iterable[str]) -> tuple[str, ...]:
    """Return what stands for a typed word in an index of stems."""
    return unspaced_parts_of(word) or stems_of(word, algorithms) or (indexed(word.lower()),)


def stems_of(word: str, algorithms: Iterable[str]) -> tuple[str, ...]:
    """Return the different stems of a typed word, as they are indexed."""
    word = word.lower()
    if len(word) > _LONGEST:
        return ()
    return tuple(dict.fromkeys(indexed(Stemmer(algorithm).stemWord(word) or word) for algorithm in algorithms))


def _parts(word: str) -> Iterator[str]:
    """Yield the pairs or triples of neighbouring characters of a word's unspaced scripts, and its other parts."""
    if word.isascii():
        return
    end = 0
    for run in _UNSPACED.finditer(word):
        if _WORD.search(other := word[end : run.start()]):  # Combining marks alone are no word.
            yield other
        end = run.end()
        size = _LETTERS_OF_PART if _ALPHABET.match(run[0]) else _CHARACTERS_OF_PART
        yield from (word[at : at + size] for at in range(run.start(), end - size + 1))
    if end and _WORD.search(other := word[end:]):
        yield other


def _parts_at_edges(word: str) -> Iterator[str]:
    """Yield each short part in another script with the last character before it, and with the first one after it."""
    if word.isascii():
        return
    before, end = "", 0
    for run in _UNSPACED.finditer(word):
        other = word[end : run.start()]
        if len(other) <= _LONGEST_BESIDE and _WORD.fullmatch(other):
            yield from (f"{before}{other}", f"{other}{run.group()[0]}") if before else (f"{other}{run.group()[0]}",)
        before, end = run.group()[-1], run.end()
    if before and len(other := word[end:]) <= _LONGEST_BESIDE and _WORD.fullmatch(other):
        yield f"{before}{other}"
