"""Indexes of stems, in which all forms of a word count as one: the names of pages, and passages of their texts."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import islice
from typing import Final

from app.pack.derived import SAMPLE
from app.text.languages import algorithm_of
from app.text.titles import without_site_name
from app.text.variants import VariantsByAlgorithm

#: Stems of a passage, and passages of a page. As many numbers of passages fit into a rowid.
PASSAGE_WORDS: Final = 60
MAX_PASSAGES: Final = 4_096

_PAGES: Final = f"""
SELECT id, lang, title, headings, anchors, body, substr(body, 1, {SAMPLE}) FROM pages WHERE NOT hidden
"""  # noqa: S608 (ours)
_INSERT_NAMES: Final = "INSERT INTO name_stems (rowid, title, headings, anchors) VALUES (?, ?, ?, ?)"
_INSERT_PASSAGE: Final = "INSERT INTO passages (rowid, text) VALUES (?, ?)"


def write(database: sqlite3.Connection, site: str, stemmers: Sequence[str]) -> None:
    """Fill `name_stems` and `passages` from all pages that are not hidden. `site` is the part that titles share.

    `stemmers` are the algorithms by which queries are stemmed. A page in another language has the stems of the first
    one, since a query has no others.
    """
    default = next(iter(stemmers), "")
    for table in ("name_stems", "passages"):
        database.execute(f"INSERT INTO {table} ({table}) VALUES ('delete-all')")  # noqa: S608 - The names are constants.
    by_algorithm = VariantsByAlgorithm()
    for page, lang, title, *names, body, sample in database.execute(_PAGES):
        algorithm = algorithm_of(lang, sample)
        if algorithm not in stemmers:
            algorithm = default
        variants = by_algorithm[algorithm]
        texts = (without_site_name(title, site), *names)
        database.execute(_INSERT_NAMES, (page, *(" ".join(variants.stems_in_name(text)) for text in texts)))
        stems = variants.stems_in(body)
        starts = islice(range(0, len(stems), PASSAGE_WORDS), MAX_PASSAGES)
        passages = (" ".join(stems[start : start + PASSAGE_WORDS]) for start in starts)
        rows = ((page * MAX_PASSAGES + number, passage) for number, passage in enumerate(passages))
        database.executemany(_INSERT_PASSAGE, rows)
    for table in ("name_stems", "passages"):
        database.execute(f"INSERT INTO {table} ({table}) VALUES ('optimize')")  # noqa: S608 - The names are constants.
