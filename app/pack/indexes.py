"""The full-text indexes of a pack and its vocabulary: filled from all rows, or brought up to date with changed ones.

In the indexes of stems, all forms of a word count as one: those of the names of pages, and of passages of their texts.
A contentless index removes a row only given what was indexed of it, which is derived from the former row again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, zip_longest
from typing import Final, NamedTuple, TypeAlias

from app.text.languages import algorithm_of
from app.text.titles import without_site_name
from app.text.variants import Word, forms_of_all, remembered_variants, symbols_in
from app.text.words import indexed

#: Words in the vocabulary of a pack, the most frequent ones, and characters of its longest word.
MAX_WORDS: Final = 100_000
MAX_WORD_LENGTH: Final = 40
#: Stems of a passage, and passages of a page. As many numbers of passages fit into a rowid.
PASSAGE_WORDS: Final = 60
MAX_PASSAGES: Final = 4_096

#: The indexes that have no hidden pages.
VISIBLE_INDEXES: Final = ("names", "name_stems", "passages")

_TEXTS: Final = "title, headings, anchors, description, name_forms, body_forms, body"
_ALL: Final = f"SELECT id, lang, hidden, {_TEXTS} FROM pages WHERE NOT hidden"  # noqa: S608 (ours)
_ROW: Final = f"SELECT id, lang, hidden, {_TEXTS} FROM pages WHERE id = ?"  # noqa: S608 (ours)
_FINISH: Final = "UPDATE pages SET id = ?, shown_as = ?, body_forms = ? WHERE id = ?"
_COLUMNS: Final = ("id", "lang", "hidden", *_TEXTS.split(", "))
_CHANGED: Final = f"""
SELECT former.url IS NOT NULL, pages.url IS NOT NULL, {", ".join(f"former.{column}" for column in _COLUMNS)},
    {", ".join(f"pages.{column}" for column in _COLUMNS)}
FROM former_pages AS former LEFT JOIN pages USING (id) ORDER BY former.id
"""  # noqa: S608 (ours)
_FILL_TEXTS: Final = f"""
INSERT INTO pages_fts (rowid, {_TEXTS}) SELECT id, {", ".join(f"indexed({name})" for name in _TEXTS.split(", "))}
FROM pages ORDER BY id
"""  # noqa: S608 (ours)

_VOCABULARY: Final = "CREATE VIRTUAL TABLE IF NOT EXISTS temp.vocabulary USING fts5vocab (main, pages_fts, col)"
_IS_NO_FORM: Final = "col NOT IN ('name_forms', 'body_forms')"
_INSERT_WORDS: Final = f"""
INSERT INTO words (word, docs)
SELECT term, max(doc) AS docs FROM temp.vocabulary
WHERE length(term) <= ? AND {_IS_NO_FORM}
GROUP BY term ORDER BY docs DESC, term LIMIT ?
"""  # noqa: S608 (ours)
_TYPED: Final = "(rowid, title, headings, anchors, description, body) VALUES (?, ?, ?, ?, ?, ?)"
_NOTE_FORMER: Final = f"INSERT INTO temp.former_texts {_TYPED}"
_NOTE_PRESENT: Final = f"INSERT INTO temp.present_texts {_TYPED}"
_CHANGED_WORDS: Final = """
SELECT DISTINCT term FROM (
    SELECT term, col, doc FROM temp.present_words UNION ALL SELECT term, col, -doc FROM temp.former_words
) WHERE length(term) <= ? GROUP BY term, col HAVING sum(doc) <> 0
"""
_DOCS: Final = f"SELECT max(doc) FROM temp.vocabulary WHERE term = ? AND {_IS_NO_FORM}"  # noqa: S608 (ours)
_NOTE_WORD: Final = "INSERT INTO words (word, docs) VALUES (?, ?) ON CONFLICT (word) DO UPDATE SET docs = excluded.docs"


class IndexedRow(NamedTuple):
    """What is indexed of a row of `pages`."""

    id: int
    lang: str
    hidden: int
    title: str
    headings: str
    anchors: str
    description: str
    name_forms: str
    body_forms: str
    body: str

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns of `pages_fts`, as they are indexed."""
        return (*map(indexed, self[3:]),)


class _Index(NamedTuple):
    """The statements that write a row of an index and remove it."""

    insert: str
    delete: str

    @classmethod
    def of(cls, table: str, columns: str) -> _Index:
        """Return the statements for a contentless table with these columns, as in a list of SQL."""
        marks = ", ?" * (columns.count(",") + 1)
        return cls(
            f"INSERT INTO {table} (rowid, {columns}) VALUES (?{marks})",  # noqa: S608 (ours)
            f"INSERT INTO {table} ({table}, rowid, {columns}) VALUES ('delete', ?{marks})",  # noqa: S608 (ours)
        )


_PAGES: Final = _Index.of("pages_fts", _TEXTS)
_NAMES: Final = _Index.of("names", "title, headings, anchors")
_STEMS: Final = _Index.of("name_stems", "title, headings, anchors")
_PASSAGES: Final = _Index.of("passages", "text")

#: The columns of one row of an index.
_Texts: TypeAlias = tuple[str, ...]


class _Entries(NamedTuple):
    """The entries of a visible row in `names`, `name_stems` and `passages`."""

    names: _Texts
    stems: _Texts
    passages: list[_Texts]


class IndexWriter:
    """Writes the indexes of a database. Rows must come in order of their ids, else FTS5 writes more segments.

    `site` is the part that titles share. `stemmers` are the algorithms by which queries are stemmed. A page in another
    language has the stems of the first one, since a query has no others.
    """

    def __init__(self, database: sqlite3.Connection, *, site: str, stemmers: Sequence[str]) -> None:
        self._database = database
        self._site = site
        self._stemmers = stemmers
        self._variants = remembered_variants()

    def fill(self) -> None:
        """Fill `names`, `name_stems` and `passages` again from all pages that are not hidden."""
        for table in VISIBLE_INDEXES:
            self._database.execute(f"INSERT INTO {table} ({table}) VALUES ('delete-all')")  # noqa: S608 (ours)
        for row in (IndexedRow(*columns) for columns in self._database.execute(_ALL)):
            self._insert(row.id, self._entries(row))
        optimize(self._database, *VISIBLE_INDEXES)

    def fill_new(self, ranked: Iterable[tuple[int, int, int]]) -> None:
        """Fill them from all pages of a new pack, each with its new id as `rows.ranked` yields it.

        The other forms of the words of its text are written, too, so that the text is divided into words once.
        """
        for page, shown_as, former in ranked:
            row = IndexedRow(*self._database.execute(_ROW, (former,)).fetchone())
            variants = self._variants[algorithm_of(row.lang)]
            words = variants.words_in(row.body)
            symbols = symbols_in(f"{row.description}\n{row.body}")
            forms = forms_of_all([*variants.words_in(row.description), *words], symbols)
            self._database.execute(_FINISH, (page, shown_as, forms, former))
            self._insert(page, self._entries(row, words))
        optimize(self._database, *VISIBLE_INDEXES)

    def _insert(self, page: int, entries: _Entries | None) -> None:
        if entries:
            self._database.execute(_NAMES.insert, (page, *entries.names))
            self._database.execute(_STEMS.insert, (page, *entries.stems))
            passages = enumerate(entries.passages, page * MAX_PASSAGES)
            self._database.executemany(_PASSAGES.insert, ((number, *texts) for number, texts in passages))

    def update(self) -> None:
        """Write the entries of changed rows in these indexes again. Equal ones stay."""
        for former, present in changed_rows(self._database):
            row = former or present
            if row is None or former == present:
                continue
            old, new = self._entries(former), self._entries(present)
            self._replace(_NAMES, row.id, old and old.names, new and new.names)
            self._replace(_STEMS, row.id, old and old.stems, new and new.stems)
            passages = zip_longest(old.passages if old else (), new.passages if new else ())
            for number, (before, after) in enumerate(passages, row.id * MAX_PASSAGES):
                self._replace(_PASSAGES, number, before, after)

    def _replace(self, index: _Index, row: int, former: _Texts | None, present: _Texts | None) -> None:
        """Replace the entry of a row in an index, if it differs."""
        if former == present:
            return
        if former is not None:
            self._database.execute(index.delete, (row, *former))
        if present is not None:
            self._database.execute(index.insert, (row, *present))

    def _entries(self, row: IndexedRow | None, words: list[Word] | None = None) -> _Entries | None:
        """Return the entries of a row. `words` are those of its body in the language of the page."""
        if row is None or row.hidden:
            return None
        algorithm = algorithm_of(row.lang)
        if algorithm not in self._stemmers:
            algorithm, words = next(iter(self._stemmers), ""), None
        variants = self._variants[algorithm]
        names = (without_site_name(row.title, self._site), row.headings, row.anchors)
        stems = variants.stems_of_all(variants.words_in(row.body) if words is None else words)
        starts = islice(range(0, len(stems), PASSAGE_WORDS), MAX_PASSAGES)
        return _Entries(
            (*map(indexed, names),),
            tuple(" ".join(variants.stems_in_name(text)) for text in names),
            [(" ".join(stems[start : start + PASSAGE_WORDS]),) for start in starts],
        )


def changed_rows(database: sqlite3.Connection) -> Iterator[tuple[IndexedRow | None, IndexedRow | None]]:
    """Yield what is indexed of each changed row, before and after the update, in order of the ids.

    A new row has no former one, a removed row no present one.
    """
    for was_there, is_there, *columns in database.execute(_CHANGED):
        former, present = columns[: len(_COLUMNS)], columns[len(_COLUMNS) :]
        yield IndexedRow(*former) if was_there else None, IndexedRow(*present) if is_there else None


def fill_texts(database: sqlite3.Connection) -> None:
    """Fill `pages_fts` from all rows at once."""
    database.create_function("indexed", 1, indexed)
    database.execute(_FILL_TEXTS)
    optimize(database, "pages_fts")


def update_texts(database: sqlite3.Connection) -> int:
    """Write changed rows in `pages_fts` again, and count the words that they have gained or lost.

    Return the number of these rows.
    """
    written = 0
    for former, present in changed_rows(database):
        if former and present and former[3:] == present[3:]:
            continue
        written += 1
        for row, write, note in ((former, _PAGES.delete, _NOTE_FORMER), (present, _PAGES.insert, _NOTE_PRESENT)):
            if row:
                *typed, _, _, body = texts = row.texts
                database.execute(write, (row.id, *texts))
                database.execute(note, (row.id, *typed, body))
    database.execute(_VOCABULARY)
    words, fewest = database.execute("SELECT count(*), min(docs) FROM words").fetchone()
    # A full vocabulary takes no word that is as rare as any.
    least = int(fewest) + 1 if words >= MAX_WORDS else 1
    for (word,) in database.execute(_CHANGED_WORDS, (MAX_WORD_LENGTH,)).fetchall():
        (docs,) = database.execute(_DOCS, (word,)).fetchone()
        if docs is None or docs < least:
            database.execute("DELETE FROM words WHERE word = ?", (word,))
        else:
            database.execute(_NOTE_WORD, (word, docs))
    return written


def optimize(database: sqlite3.Connection, *tables: str) -> None:
    """Merge each index to one segment."""
    for table in tables:
        database.execute(f"INSERT INTO {table} ({table}) VALUES ('optimize')")  # noqa: S608 (ours)


def write_words(database: sqlite3.Connection) -> None:
    """Fill `words` from the full-text index, so that searchers need not count words.

    Other forms of words are no words. A word counts the pages of the column in which most pages have it.
    """
    database.execute(_VOCABULARY)
    database.execute("DELETE FROM words")
    database.execute(_INSERT_WORDS, (MAX_WORD_LENGTH, MAX_WORDS))
