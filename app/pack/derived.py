"""What of a pack depends on other pages or on the language: bodies, anchor texts, and other forms of words.

In the indexes of stems, all forms of a word count as one: those of the names of pages, and of passages of their texts.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from app.pack import anchors, groups, repeated
from app.text.languages import algorithm_of, detect_language
from app.text.lines import lines_in, without_ends
from app.text.titles import without_site_name
from app.text.variants import VariantsByAlgorithm

#: Share of a pack's pages from which queries are stemmed by an algorithm, and the number of algorithms.
_LEAST_SHARE: Final = 0.05
_MAX_ALGORITHMS: Final = 3
#: Characters of a page that show its language.
_SAMPLE: Final = 4_000
#: Stems of a passage, and passages of a page. As many numbers of passages fit into a rowid.
PASSAGE_WORDS: Final = 60
MAX_PASSAGES: Final = 4_096

_NAMES: Final = f"""
SELECT id, lang, title, headings, anchors, name_forms, inlinks, substr(body, 1, {_SAMPLE}) FROM pages
"""  # noqa: S608 (ours)
_UPDATE: Final = "UPDATE pages SET anchors = ?, name_forms = ?, inlinks = ? WHERE id = ?"
_TEXT: Final = "SELECT lang, title, description, body FROM pages WHERE object = ?"
_UPDATE_TEXT: Final = "UPDATE pages SET lang = ?, body = ?, body_forms = ?, text_hash = ? WHERE object = ?"
_PAGES: Final = f"""
SELECT id, lang, title, headings, anchors, body, substr(body, 1, {_SAMPLE}) FROM pages WHERE NOT hidden
"""  # noqa: S608 (ours)
_INSERT_NAMES: Final = "INSERT INTO name_stems (rowid, title, headings, anchors) VALUES (?, ?, ?, ?)"
_INSERT_PASSAGE: Final = "INSERT INTO passages (rowid, text) VALUES (?, ?)"


def body_forms(variants: VariantsByAlgorithm, *, lang: str, description: str, body: str) -> str:
    """Return the forms of the words of a page's text."""
    return variants[algorithm_of(lang, body[:_SAMPLE])].of(f"{description}\n{body}")


def finish_bodies(database: sqlite3.Connection, page_ids: Iterable[str], repeated_lines: frozenset[int]) -> None:
    """Leave the repeated lines out of the bodies of new and changed pages, and write the forms of their words.

    A page that declares no language gets the one of its text.
    """
    variants = VariantsByAlgorithm()
    for page_id in page_ids:
        for lang, title, description, body in database.execute(_TEXT, (page_id,)).fetchall():
            lines = lines_in(body)
            own = repeated.without(lines, repeated_lines)
            language = lang or detect_language(f"{title} {description} {own}")
            other_forms = body_forms(variants, lang=language, description=description, body=own)
            database.execute(
                _UPDATE_TEXT, (language, own, other_forms, groups.hash_of(title, without_ends(own)), page_id)
            )
            repeated.note_removed(database, page_id, lines, repeated_lines)


def join(database: sqlite3.Connection) -> None:
    """Bring anchor texts, numbers of linking pages and forms of names up to date. Equal rows are not written again."""
    joined = anchors.joined(database)
    variants = VariantsByAlgorithm()
    changes = []
    for page, lang, title, headings, *old, sample in database.execute(_NAMES):
        texts, inlinks = joined.get(page, ("", 0))
        names = variants[algorithm_of(lang, sample)].of(f"{title}\n{headings}\n{texts}")
        if [texts, names, inlinks] != old:
            changes.append((texts, names, inlinks, page))
    database.executemany(_UPDATE, changes)


def stemmers(database: sqlite3.Connection) -> str:
    """Return the algorithms by which a query is stemmed, with spaces between: those of many pages."""
    pages = database.execute(f"SELECT lang, substr(body, 1, {_SAMPLE}) FROM pages")  # noqa: S608 (ours)
    counts = Counter(algorithm_of(lang, sample) for lang, sample in pages)
    least = _LEAST_SHARE * counts.total()
    frequent = (name for name, pages in counts.items() if name and pages >= least)
    return " ".join(sorted(frequent, key=lambda name: (-counts[name], name))[:_MAX_ALGORITHMS])


def write_stems(database: sqlite3.Connection, site: str, stemmers: Sequence[str]) -> None:
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
