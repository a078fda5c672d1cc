"""Order the best pages for a question by score and meaning: the extra `perennial[meaning]`.

Its package brings vectors of words. A meaning is the mean vector of a text.
"""

from __future__ import annotations

import sqlite3
from functools import cache
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from app.search.pack_tables import cut, read_rows

if TYPE_CHECKING:
    from wordllama.inference import WordLlamaInference

#: Pages that are compared, the best ones, and words of each: a page begins with what it is about.
_COMPARED: Final = 30
_WORDS: Final = 60
#: What a page with the meaning of the question adds to its score, as a share of the bound of scores.
_SHARE: Final = 0.25

_TEXTS: Final = f"id, {cut('body', 1_000)}"


def is_installed() -> bool:
    """Return whether the extra's package is installed."""
    return find_spec("wordllama") is not None


@cache
def load() -> WordLlamaInference:
    """Return the vectors, which stay in memory."""
    import wordllama

    # It looks for its tokenizer in a wrong folder, and would download it, unless its own folder is named as the cache.
    folder = Path(wordllama.__file__).parent
    return wordllama.WordLlama.load(cache_dir=folder, disable_download=True)


def reranked(
    connection: sqlite3.Connection, question: str, scores: dict[int, float], *, bound: float
) -> dict[int, float]:
    """Return the scores, best first, with the best pages in the order of score and meaning together.

    They are the same scores: those of several packs stay comparable.
    """
    best = tuple(islice(scores, _COMPARED))
    texts = {page: " ".join(text.split()[:_WORDS]) for page, text in read_rows(connection, _TEXTS, best) if text}
    if len(texts) < 2:
        return scores
    compared = load().rank(question, list(texts.values()), sort=False)
    added = {page: _SHARE * bound * similarity for page, (_, similarity) in zip(texts, compared, strict=True)}
    order = sorted(best, key=lambda page: scores[page] + added.get(page, 0.0), reverse=True)
    return dict(zip(chain(order, islice(scores, _COMPARED, None)), scores.values(), strict=True))
