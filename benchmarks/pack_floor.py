"""Floor of the row `pack`: the tables and indexes of a finished pack, written again from precomputed rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from io import BytesIO
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TypeAlias

from app.pack import database as db
from app.pack.frames import compressed, hashes_of
from app.pack.indexes import VISIBLE_INDEXES, fill_texts, optimize

#: Rows by the statement that inserts them.
Rows: TypeAlias = Mapping[str, list[tuple[object, ...]]]

_NAMES = ("title", "headings", "anchors")


def read_rows(pack: Path) -> Rows:
    """Return the rows of all tables of a decompressed pack, and the texts of its three small indexes."""
    with closing(sqlite3.connect(pack)) as database:
        tables = [name for _, name, kind, *_ in database.execute("PRAGMA main.table_list") if kind == "table"]
        rows = {name: database.execute(f"SELECT * FROM {name}").fetchall() for name in tables if "sqlite" not in name}
        found = {
            f"INSERT INTO {name} VALUES ({', '.join('?' * len(each[0]))})": each for name, each in rows.items() if each
        }
        for index, columns in {"names": _NAMES, "name_stems": _NAMES, "passages": ("text",)}.items():
            insert = f"INSERT INTO {index} (rowid, {', '.join(columns)}) VALUES (?{', ?' * len(columns)})"
            found[insert] = [*_tokens(database, index, columns)]
    return found


def write(rows: Rows, folder: Path) -> Path:
    """Write the rows into a new database in `folder`, and what follows in `pack_full`: index, copy, check and compress.

    Return the path of the compact copy.
    """
    with db.create(folder / "new.sqlite") as database:
        with db.transaction(database):
            for insert, each in rows.items():
                database.executemany(insert, each)
            fill_texts(database)
            optimize(database, *VISIBLE_INDEXES)
        path = db.write_compact(database, folder / "compact.sqlite")
    different = {hashed: number for number, hashed in enumerate(hashes_of(path))}
    BytesIO().writelines(compressed(path, different.values()))
    return path


def _tokens(database: sqlite3.Connection, index: str, columns: tuple[str, ...]) -> Iterator[tuple[object, ...]]:
    """Yield rowid and texts of each row of a contentless index: its tokens, which are tokens again."""
    database.execute(f"CREATE VIRTUAL TABLE temp.tokens_of_{index} USING fts5vocab (main, {index}, instance)")
    tokens = database.execute(f"SELECT doc, col, term FROM temp.tokens_of_{index} ORDER BY doc, offset")
    for doc, of_row in groupby(tokens, key=itemgetter(0)):
        texts: dict[str, list[str]] = {column: [] for column in columns}
        for _, column, term in of_row:
            texts[column].append(term)
        yield (doc, *map(" ".join, texts.values()))
