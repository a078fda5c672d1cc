"""Search one pack: the entry of this package. A search ranks page ids, then reads the pages of one page of hits."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from app.errors import PackCorrupt, PackNotFound, SearchTimeout
from app.search import meaning, passages, ranking, spelling, suggest, title_match, visible
from app.search.alternates import Alternates
from app.search.connections import ConnectionPool, check_version
from app.search.contract import MAX_HITS, Filters, PackHits, PackInfo, SearchReply, SearchRequest, Sort
from app.search.definitions import Definition, definitions_of
from app.search.hits import HitBuilder, places_of
from app.search.pack_tables import cut
from app.search.promotion import promote, promoted_pages
from app.search.properties import Properties, multiplied
from app.search.query import Query, parse
from app.search.retrieval import ChooseMatches, RankingScope, without_frequent_prefix
from app.search.score_bound import bounded, score_bound
from app.search.search_settings import NO_SETTINGS, SearchSettings
from app.search.stems import stems_in
from app.search.visible import VisiblePages
from app.text.languages import ALGORITHMS

#: Seconds that opening a pack may take.
OPENING_SECONDS = 60.0
#: Bytes of a value, and of a row, that are read while a pack is opened: four for each of 16 million pages.
_MAX_OPENING_ROW = 2**26
#: Characters of an entry of a pack's own metadata. The name of a site may be another one in each of many languages.
_MAX_META = 20_000
#: Digits of a number.
_MAX_DIGITS = 15

#: Definitions of a name that are shown first.
_MAX_DEFINITIONS = 3
_NO_FILTERS = Filters()


class PackSearcher:
    """Searches one SQLite pack, read-only, from any thread. Each search may take `time_limit` seconds."""

    def __init__(self, path: Path, *, time_limit: float = 1.0) -> None:
        """Open the pack; raises PackNotFound for a missing file, PackCorrupt for any other schema version or file."""
        if not path.is_file():
            raise PackNotFound(f"{path}: no such file")
        self.path = path
        self._time_limit = time_limit
        self._connections = ConnectionPool(path)
        with ExitStack() as on_failure:
            on_failure.callback(self._connections.close)
            try:
                with self._connections.connection(OPENING_SECONDS, max_row=_MAX_OPENING_ROW) as connection:
                    check_version(connection, path.name)
                    meta = _read_meta(connection)
                    self._properties = Properties(connection, pages=_number(meta["pages"]))
                    self.info = PackInfo(
                        domain=meta["domain"],
                        generation=meta["generation"],
                        built_at=meta["built_at"],
                        pages=self._properties.pages,
                    )
                    self._site_name = meta["site_name"]
                    self._stemmers = tuple(name for name in meta["stemmers"].split() if name in ALGORITHMS.values())
                    self._alternates = Alternates(self._properties, meta["language"])
                    self._hits = HitBuilder(self.info.domain, self._site_name, self._properties, self._alternates)
                    self._applied = NO_SETTINGS, visible.all_visible(self._properties)
                    self._scope = self._properties.scope(_number(meta["ordered"]))
            except SearchTimeout as error:
                raise PackCorrupt(f"{path.name}: it cannot be opened within {OPENING_SECONDS:g} s") from error
            on_failure.pop_all()

    def apply(self, settings: SearchSettings) -> None:
        """Search by these settings of the site from now on; raises PackCorrupt, and then the former ones hold."""
        shown = visible.all_visible(self._properties)
        if settings.hides is not None:
            try:
                with self._connections.connection(OPENING_SECONDS) as connection:
                    shown = visible.without_paths(connection, self._properties, settings.hides)
            except SearchTimeout as error:
                raise PackCorrupt(f"{self.path.name}: its paths cannot be read in {OPENING_SECONDS:g} s") from error
        self._applied = settings, shown

    @property
    def settings(self) -> SearchSettings:
        """The settings that were applied last."""
        return self._applied[0]

    def search(
        self,
        query: Query,
        *,
        offset: int = 0,
        limit: int = 10,
        sort: Sort = "relevance",
        filters: Filters = _NO_FILTERS,
        languages: Sequence[str] = (),
    ) -> PackHits:
        """Return the hits from `offset` on, best or newest first; raises SearchTimeout, PackCorrupt.

        Of identical pages, one in the first of `languages` is shown.
        """
        settings, shown = self._applied
        query = settings.synonyms.expanded(query).with_forms(self._stemmers)
        by_meaning = settings.meaning and query.is_sentence
        if by_meaning:
            meaning.load()  # Before the time limit of the first question begins.
        properties = self._properties
        if filters.lang:
            languages = (filters.lang,)
        # Filters and dates apply to every match, not to the best ones only.
        choice = None
        if sort == "date" or filters != _NO_FILTERS:
            choice = _choice(properties, shown, filters, sort, languages)
        scope = replace(self._scope, hidden=shown.hidden, choice=choice)
        with self._connections.connection(self._time_limit) as connection:
            query = without_frequent_prefix(connection, query, scope)
            defined = definitions_of(connection, query, hidden=shown.hidden)
            defined = self._alternates.definitions(defined, languages)[:_MAX_DEFINITIONS]
            ranked, all_scores, bound = self._scored(connection, query, defined, scope, factors=settings.factors)
            if by_meaning:
                all_scores = meaning.reranked(connection, query.text, all_scores, bound=bound)
            counted = shown.shown(ranked.counted)
            scores = all_scores
            if shown.shown_as:
                scores = dict(zip(shown.shown(all_scores), all_scores.values(), strict=True))
            filtered = properties.filtered(list(scores), filters, shown.copies)
            scores = self._alternates.scores(scores, filtered, languages)
            order: Sequence[int] = list(scores)
            if sort == "date":
                order = properties.newest_first(order, filters, shown.copies, languages)
            places = places_of(order, defined)
            on_page = places[:MAX_HITS][offset : offset + limit]
            represented = properties.representatives([each.page for each in on_page], filters, shown.copies, languages)
            return PackHits(
                total=max(ranked.total, len(places)) if ranked.estimated else len(places),
                estimated=ranked.estimated,
                reachable=min(len(places), MAX_HITS),
                relaxed=ranked.relaxed,
                hits=self._hits.build(connection, on_page, represented, scores, ranked.phrases, shown),
                facets=multiplied(properties.facets(counted, filters, shown.copies), ranked.factor),
                did_you_mean=spelling.did_you_mean(
                    connection, query, ranked, pages=properties.pages, hidden=shown.hidden
                ),
                score_bound=bound,
                best_bets=tuple(replace(each, domain=self.info.domain) for each in settings.best_bets_for(query.text)),
            )

    def reply(self, request: SearchRequest) -> SearchReply:
        """Return the reply to a request about this pack's domain; raises InvalidQuery, and as `search` does."""
        results = self.search(
            parse(request.q),
            offset=request.offset,
            limit=request.limit,
            sort=request.sort,
            filters=request.filters,
            languages=request.languages,
        )
        return SearchReply(info=self.info, results=results)

    def suggest(self, text: str, *, limit: int = 8) -> tuple[str, ...]:
        """Return completions of a text that a person is typing; raises SearchTimeout, PackCorrupt."""
        pages, shown = self._properties.pages, self._applied[1]
        with self._connections.connection(self._time_limit) as connection:
            return suggest.suggestions(connection, text, pages=pages, shown=shown, site=self._site_name, limit=limit)

    def close(self) -> None:
        """Close the pack. Running searches are not interrupted."""
        self._connections.close()

    def _scored(
        self,
        connection: sqlite3.Connection,
        query: Query,
        defined: Sequence[Definition],
        scope: RankingScope,
        *,
        factors: Mapping[str, float],
    ) -> tuple[ranking.Ranking, dict[int, float], float]:
        """Return the pages that match, their scores, best first, and the score that no page can exceed."""
        pages = self._properties.pages
        stems = stems_in(connection, query, self._stemmers, pages=pages)
        ranked = ranking.rank(connection, query, scope, stems=stems, factors=factors)
        bound = score_bound(connection, ranked, pages=pages, stems=stems)
        scores = passages.boosted(connection, stems, ranked.scores, scope)
        by_title = title_match.boosted(
            connection, query, scores, pages=pages, stemmers=self._stemmers, site=self._site_name
        )
        scores = ranking.boosted_by_links(by_title, self._properties.inlinks, pages=pages)
        defining = list(dict.fromkeys(each.page for each in defined))
        if defining and not ranked.complete:
            ranked = replace(ranked, complete=defining, counted=defining, factor=1.0, relaxed=False)
        elif defining and ranked.factor == 1:  # They are hits, whether or not they have all words.
            ranked = replace(ranked, counted={*ranked.counted, *defining})
        if ranked.complete:
            promoted = promoted_pages(connection, query, ranked, scope, defining=defining)
            scores = promote(promoted, scores, bound=bound)
        return ranked, bounded(scores, ranked.phrases, bound=bound), bound


def _choice(
    properties: Properties, shown: VisiblePages, filters: Filters, sort: Sort, languages: Sequence[str]
) -> ChooseMatches:
    """Return the choice of the pages that pass the filters, or of which a copy does; by date the newest first."""

    def choose(pages: Sequence[int]) -> Sequence[int]:
        by_shown = dict(zip(shown.shown(pages), pages, strict=True))
        passing = properties.filtered(list(by_shown), filters, shown.copies)
        if sort == "date":
            passing = properties.newest_first(passing, filters, shown.copies, languages)
        return [by_shown[page] for page in passing]

    return choose


def _read_meta(connection: sqlite3.Connection) -> dict[str, str]:
    """Return what a pack says of itself; an empty text for what it does not say."""
    keys = ("domain", "generation", "built_at", "pages", "stemmers", "site_name", "language", "ordered")
    rows = connection.execute(f"SELECT key, {cut('value', _MAX_META)} FROM meta WHERE key IN {keys}")  # noqa: S608 (ours)
    return dict.fromkeys(keys, "") | dict(rows)


def _number(text: str) -> int:
    """Return a number of the pack's metadata, 0 for any other text."""
    return int(text) if len(text) <= _MAX_DIGITS and text.isascii() and text.isdigit() else 0
