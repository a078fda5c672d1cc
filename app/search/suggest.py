"""Complete an unfinished query: with words of the pack, and with names of its pages."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator
from itertools import islice

from app.errors import InvalidQuery
from app.search import pack_tables
from app.search.definitions import names_beginning_with
from app.search.matcher import Matcher
from app.search.pack_tables import cut
from app.search.query import MAX_CHARACTERS, Phrase, Query, parse
from app.search.snippet import matching_lines, phrases_in
from app.search.visible import VisiblePages
from app.text.titles import without_numbering, without_site_name
from app.text.words import words

#: Completions of the last word, and names, examined per suggestion wanted.
_CANDIDATES = 3
#: Defined names that are suggested.
_MAX_DEFINED = 3
#: Names that are read. A query that more names match is too short for names to tell apart.
_MAX_NAMES = 100
#: Pages counted at most that have two words adjacent.
_MAX_ADJACENT = 10
#: One character behind a minus, an option of a command: with more of them, the minus excludes the word.
_OPTION = re.compile(r"(?<!\S)-\S$")
#: Characters of a name that still reads as a query.
_MAX_NAME_LENGTH = 80

#: Characters of a page's title and headings in which names are looked for.
_MAX_TITLE, _MAX_HEADINGS = 1_000, 50_000

_NAMES = f"id, {cut('title', _MAX_TITLE)}, {cut('headings', _MAX_HEADINGS)}"


def suggestions(
    connection: sqlite3.Connection, text: str, *, pages: int, shown: VisiblePages, site: str, limit: int
) -> tuple[str, ...]:
    """Return queries: names that the pack defines and that begin with `text`, completions of its last word, and titles.

    An invalid query has no suggestions. `pages` is the number of rows of the pack, and `site` is the
    part that titles share.
    """
    try:
        query = parse(text, keep_stop_words=True)
    except InvalidQuery:
        return ()
    defined = names_beginning_with(connection, query, hidden=shown.unnamed, limit=_MAX_DEFINED)
    words_completed = _completed(connection, query, pages=pages, shown=shown, limit=limit)
    completed = _distinct([*defined, *islice(words_completed, limit)], unlike=[text])
    matching = _matching_names(connection, query, shown=shown, site=site, limit=limit)
    names = _distinct(matching, unlike=[text, *completed])
    # A title is a better suggestion than a word, so titles get half of the suggestions if there are enough.
    most = max(limit - len(names), (limit + 1) // 2)
    return tuple(_distinct([*completed[:most], *names, *completed[most:]], unlike=[text])[:limit])


def _distinct(texts: Iterable[str], *, unlike: Iterable[str]) -> list[str]:
    """Return the texts whose words differ from those of earlier texts and of `unlike`."""
    seen = {words(text) for text in unlike}
    distinct = []
    for text in texts:
        if (its_words := words(text)) not in seen:
            seen.add(its_words)
            distinct.append(text)
    return distinct


def _completed(
    connection: sqlite3.Connection, query: Query, *, pages: int, shown: VisiblePages, limit: int
) -> Iterator[str]:
    """Yield the query with its last word completed, if a page has that word and all others."""
    if not query.unfinished or _OPTION.search(query.text):
        return
    prefix = "".join(words(query.words[-1]))
    candidates = pack_tables.completions(connection, prefix, limit=_CANDIDATES * limit)
    # A word that most pages have distinguishes them least, so it comes last.
    ordered = [word for word, _ in sorted(candidates, key=lambda pair: 2 * pair[1] > pages)]
    if len(query.words) > 1:
        before = query.words[-2]
        adjacent = {
            word: len(
                pack_tables.first_matches(connection, Phrase((before, word)).match, hidden=(), limit=_MAX_ADJACENT)
            )
            for word in ordered
        }
        ordered.sort(key=lambda word: -adjacent[word])
    for word in ordered:
        text = query.text + word[len(prefix) :]
        if len(text) < MAX_CHARACTERS and pack_tables.first_matches(
            connection, parse(text + " ", keep_stop_words=True).match, hidden=shown.hidden, limit=1
        ):
            yield text


def _matching_names(
    connection: sqlite3.Connection, query: Query, *, shown: VisiblePages, site: str, limit: int
) -> list[str]:
    """Return titles, or headings, with all words of the query; those that begin with the query come first.

    In place of the names of a hidden page, those of the copy that is shown for it count.
    """
    *firsts, last = query.words
    terms = [*(Phrase((word,)) for word in firsts), Phrase((last,), prefix=query.unfinished and len(last) > 1)]
    match = f"{{title headings}} : ({' AND '.join(term.match for term in terms)})"
    rows = connection.execute("SELECT rowid FROM names WHERE names MATCH ? LIMIT ?", (match, _MAX_NAMES))
    found = shown.shown(page for (page,) in rows if page not in shown.hidden)
    matcher = Matcher(tuple(dict.fromkeys(terms)))
    names: dict[str, None] = {}
    for _, title, headings in pack_tables.read_rows(connection, _NAMES, found):
        for text in (without_site_name(title, site), headings):
            lines = [
                line
                for line in matching_lines(text, matcher)
                if len(line) <= _MAX_NAME_LENGTH and len(phrases_in(line, matcher)) == matcher.phrase_count
            ]
            names |= dict.fromkeys(without_numbering(line) for line in lines)
            if lines:  # The headings count only if the title does not have all words.
                break
    *complete, unfinished = typed = words(" ".join(query.words))

    def begins_with_query(name: str) -> bool:
        *before, after = words(name)[: len(typed)] or ("",)
        return before == complete and after.startswith(unfinished)

    return sorted(names, key=lambda name: (not begins_with_query(name), len(name)))[: _CANDIDATES * limit]
