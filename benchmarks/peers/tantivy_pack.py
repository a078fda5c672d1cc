"""The text of a pack in a tantivy index; a search returns the ten best pages with snippets."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import tantivy

from app.search.query import Phrase, Query
from app.text.words import words

#: Fields with the same weights as in a pack.
BOOSTS = {"title": 10.0, "headings": 5.0, "description": 3.0, "body": 1.0}
STORED = ("url", "path", "lang")
ANALYZER = "folded"
TOP = 10
#: Characters of a snippet, as in this project.
WIDTH = 240


class TantivyPack:
    """One index, searched from any thread."""

    def __init__(self, pack: Path, folder: Path) -> None:
        """Index the pages of a pack in an empty folder, as one segment like the pack's own index."""
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
        """Find the best pages, read them and cut their snippets. Return the number of matching pages."""
        tree = self._tree(query)
        hits = self._searcher.search(tree, TOP)
        snippets = tantivy.SnippetGenerator.create(self._searcher, tree, self._schema, "body")
        snippets.set_max_num_chars(WIDTH)
        for _, address in hits.hits:
            document = self._searcher.doc(address)
            snippets.snippet_from_doc(document).highlighted()
        count: int = hits.count  # type: ignore[attr-defined]  # Missing in the package's own types.
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
        required = [(tantivy.Occur.Must, self._anywhere(phrase)) for phrase in query.phrases]
        excluded = [(tantivy.Occur.MustNot, self._anywhere(phrase)) for phrase in query.excluded]
        return tantivy.Query.boolean_query([*required, *excluded])

    def _anywhere(self, phrase: Phrase) -> tantivy.Query:
        """Return the query for a phrase in any field with the field's weight; for a prefix, also for longer words."""
        found = [word for typed in phrase.words for word in words(typed)]
        choices = []
        for field, boost in BOOSTS.items():
            each = [self._phrase(field, found)]
            if phrase.prefix:
                each.append(self._with_prefix(field, found))
            choices += [(tantivy.Occur.Should, tantivy.Query.boost_query(query, boost)) for query in each]
        return tantivy.Query.boolean_query(choices)

    def _phrase(self, field: str, found: list[str]) -> tantivy.Query:
        if len(found) == 1:
            return tantivy.Query.term_query(self._schema, field, found[0])
        return tantivy.Query.phrase_query(self._schema, field, list(found))

    def _with_prefix(self, field: str, found: list[str]) -> tantivy.Query:
        if len(found) == 1:
            return tantivy.Query.regex_query(self._schema, field, f"{re.escape(found[0])}.+")
        return tantivy.Query.phrase_prefix_query(self._schema, field, list(found))


def _analyzer() -> tantivy.TextAnalyzer:
    """Return the closest equivalent of the packs' tokenizer."""
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    return builder.filter(tantivy.Filter.lowercase()).filter(tantivy.Filter.ascii_fold()).build()
