"""The text of a pack in a tantivy index, asked what a person typed: the ten best pages, with snippets."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import tantivy

from app.search.query import Query, Unit
from app.search.tokens import words

#: Fields with the weights that our packs give them.
BOOSTS = {"title": 10.0, "headings": 5.0, "description": 3.0, "body": 1.0}
STORED = ("url", "path", "lang")
ANALYZER = "folded"
TOP = 10
#: Characters of a snippet, as ours.
WIDTH = 240


class TantivyPack:
    """One index, searched from any thread."""

    def __init__(self, pack: Path, folder: Path) -> None:
        """Build the index of a pack's pages in an empty folder: one segment, as ours is."""
        builder = tantivy.SchemaBuilder()
        for name in BOOSTS:
            builder.add_text_field(name, stored=True, tokenizer_name=ANALYZER)
        for name in STORED:
            builder.add_text_field(name, stored=True, tokenizer_name="raw")
        self._schema = builder.build()
        folder.mkdir(parents=True)
        self._index = tantivy.Index(self._schema, path=str(folder))
        self._index.register_tokenizer(ANALYZER, _analyzer())
        self._fill(pack)
        self._searcher = self._index.searcher()

    def search(self, query: Query) -> int:
        """Find the best pages, read them and cut their snippets; return how many pages match."""
        tree = self._tree(query)
        found = self._searcher.search(tree, TOP)
        snippets = tantivy.SnippetGenerator.create(self._searcher, tree, self._schema, "body")
        snippets.set_max_num_chars(WIDTH)
        for _, address in found.hits:
            document = self._searcher.doc(address)
            snippets.snippet_from_doc(document).highlighted()
        count: int = found.count  # type: ignore[attr-defined]  # Missing in the package's own types.
        return count

    def _fill(self, pack: Path) -> None:
        columns = (*BOOSTS, *STORED)
        writer = self._index.writer(num_threads=1)
        with closing(sqlite3.connect(pack)) as database:
            for row in database.execute(f"SELECT {', '.join(columns)} FROM pages WHERE NOT hidden"):
                writer.add_document(tantivy.Document(**dict(zip(columns, row, strict=True))))
        writer.commit()
        writer.wait_merging_threads()
        self._index.reload()

    def _tree(self, query: Query) -> tantivy.Query:
        wanted = [(tantivy.Occur.Must, self._anywhere(unit)) for unit in query.units]
        unwanted = [(tantivy.Occur.MustNot, self._anywhere(unit)) for unit in query.exclusions]
        return tantivy.Query.boolean_query([*wanted, *unwanted])

    def _anywhere(self, unit: Unit) -> tantivy.Query:
        """Return the query for a unit in any field, in each with its weight; a word to be continued, also continued."""
        found = [word for typed in unit.words for word in words(typed)]
        choices = []
        for field, boost in BOOSTS.items():
            each = [self._side_by_side(field, found)]
            if unit.prefix:
                each.append(self._continued(field, found))
            choices += [(tantivy.Occur.Should, tantivy.Query.boost_query(query, boost)) for query in each]
        return tantivy.Query.boolean_query(choices)

    def _side_by_side(self, field: str, found: list[str]) -> tantivy.Query:
        if len(found) == 1:
            return tantivy.Query.term_query(self._schema, field, found[0])
        return tantivy.Query.phrase_query(self._schema, field, list(found))

    def _continued(self, field: str, found: list[str]) -> tantivy.Query:
        if len(found) == 1:
            return tantivy.Query.regex_query(self._schema, field, f"{re.escape(found[0])}.+")
        return tantivy.Query.phrase_prefix_query(self._schema, field, list(found))


def _analyzer() -> tantivy.TextAnalyzer:
    """Return what comes nearest to the tokenizer of our packs."""
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    return builder.filter(tantivy.Filter.lowercase()).filter(tantivy.Filter.ascii_fold()).build()
