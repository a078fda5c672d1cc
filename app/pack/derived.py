"""Columns of a pack that depend on other pages or on the language: bodies, anchor texts, and other forms of words."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable
from typing import Final

from app.pack import anchors, groups, repeated
from app.text.detection import detect_language
from app.text.languages import algorithm_of
from app.text.variants import VariantsByAlgorithm

#: Share of a pack's pages from which queries are stemmed by an algorithm, and the number of algorithms.
_LEAST_SHARE: Final = 0.05
_MAX_ALGORITHMS: Final = 3
#: Characters of a page that show its language.
SAMPLE: Final = 4_000

_NAMES: Final = f"""
SELECT id, lang, title, headings, anchors, name_forms, inlinks, substr(body, 1, {SAMPLE}) FROM pages
"""  # noqa: S608 (ours)
_UPDATE: Final = "UPDATE pages SET anchors = ?, name_forms = ?, inlinks = ? WHERE id = ?"
_TEXT: Final = "SELECT lang, title, description, body FROM pages WHERE object = ?"
_UPDATE_TEXT: Final = "UPDATE pages SET lang = ?, body = ?, body_forms = ?, text_hash = ? WHERE object = ?"


def body_forms(variants: VariantsByAlgorithm, *, lang: str, description: str, body: str) -> str:
    """Return the forms of the words of a page's text."""
    return variants[algorithm_of(lang, body[:SAMPLE])].of(f"{description}\n{body}")


def finish_bodies(database: sqlite3.Connection, page_ids: Iterable[str], repeated_lines: frozenset[int]) -> None:
    """Leave the repeated lines out of the bodies of new and changed pages, and write the forms of their words.

    A page that declares no language gets the one of its text.
    """
    variants = VariantsByAlgorithm()
    for page_id in page_ids:
        for lang, title, description, body in database.execute(_TEXT, (page_id,)).fetchall():
            lines = body.split(repeated.BREAK)
            own = repeated.without(lines, repeated_lines)
            language = lang or detect_language(f"{title} {description} {own}")
            other_forms = body_forms(variants, lang=language, description=description, body=own)
            database.execute(_UPDATE_TEXT, (language, own, other_forms, groups.hash_of(title, own), page_id))
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
    pages = database.execute(f"SELECT lang, substr(body, 1, {SAMPLE}) FROM pages")  # noqa: S608 (ours)
    counts = Counter(algorithm_of(lang, sample) for lang, sample in pages)
    least = _LEAST_SHARE * counts.total()
    frequent = (name for name, pages in counts.items() if name and pages >= least)
    return " ".join(sorted(frequent, key=lambda name: (-counts[name], name))[:_MAX_ALGORITHMS])
