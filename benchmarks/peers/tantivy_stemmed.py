"""Pages in a tantivy index in memory, stemmed, with a boost for each field: what tantivy's documentation suggests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import tantivy

ANALYZER = "stemmed"
TOP = 10
#: Signs with a meaning in tantivy's query language, which people type without it: `--option`, `how?`, `a:b`, `l'eau`.
_SYNTAX = re.compile(r"""(?<!\w)[-+.]+|[^\w\s".-]+""")


class TantivyStemmed:
    """One index, in memory."""

    def __init__(self, rows: Iterable[Mapping[str, str]], boosts: Mapping[str, float], language: str) -> None:
        """Index the rows: `path`, and a text for each field that has a boost."""
        self._boosts = dict(boosts)
        builder = tantivy.SchemaBuilder()
        builder.add_text_field("path", stored=True, tokenizer_name="raw")
        for name in boosts:
            builder.add_text_field(name, tokenizer_name=ANALYZER)
        self._index = tantivy.Index(builder.build())
        self._index.register_tokenizer(ANALYZER, _analyzer(language))
        writer = self._index.writer(num_threads=1)
        for row in rows:
            writer.add_document(tantivy.Document(**row))
        writer.commit()
        writer.wait_merging_threads()
        self._index.reload()
        self._searcher = self._index.searcher()

    def rank(self, q: str) -> list[str]:
        """Return the paths of the best pages with any word of the query, the best first."""
        query, _ = self._index.parse_query_lenient(_SYNTAX.sub(" ", q), list(self._boosts), self._boosts)
        hits = self._searcher.search(query, TOP).hits
        return [str(self._searcher.doc(address)["path"][0]) for _, address in hits]


def _analyzer(language: str) -> tantivy.TextAnalyzer:
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple()).filter(tantivy.Filter.lowercase())
    return builder.filter(tantivy.Filter.ascii_fold()).filter(tantivy.Filter.stemmer(language)).build()
