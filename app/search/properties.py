"""The properties of all pages of a pack in memory: filters, facets, dates, and which of identical pages is shown."""

from __future__ import annotations

import json
import sqlite3
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from app.search.contract import Facet, Filters
from app.search.number_arrays import Numbers, unpacked
from app.search.retrieval import RankingScope, rounded

#: Values of one facet, at most.
_VALUES = 10
_MAX_TEXTS = 4_000
#: Letters of the subtag of a script (RFC 5646 section 2.2.3).
_SCRIPT = 4

_PROPERTIES = "SELECT name, width, numbers, texts FROM properties"

#: The other pages of each group of identical pages, by the page that is shown.
CopiesByPage: TypeAlias = Mapping[int, tuple[int, ...]]
_NO_FILTERS = Filters()


class GroupedPages(CopiesByPage):
    """The groups as the pack has them: pages in order of the page that is shown for each, and the latter."""

    def __init__(self, pages: Numbers, shown: Numbers) -> None:
        """Keep the two arrays; raises ValueError for arrays of different lengths."""
        if len(pages) != len(shown):
            raise ValueError(f"{len(pages)} copies of {len(shown)} pages")
        self.pages, self._shown = pages, shown

    def __getitem__(self, page: int) -> tuple[int, ...]:
        found = tuple(self.pages[bisect_left(self._shown, page) : bisect_right(self._shown, page)])
        if not found:
            raise KeyError(page)
        return found

    def __contains__(self, page: object) -> bool:
        return isinstance(page, int) and bisect_left(self._shown, page) < bisect_right(self._shown, page)

    def __iter__(self) -> Iterator[int]:
        return iter(dict.fromkeys(self._shown))

    def __len__(self) -> int:
        return len(set(self._shown))

    def __bool__(self) -> bool:
        return bool(self.pages)


@dataclass(frozen=True, slots=True)
class _Column:
    """One property. `codes` maps a page's id to the index of its value in `values`, whose first value is empty."""

    name: str
    values: tuple[str, ...]
    codes: Numbers

    def having(self, pages: Iterable[int], value: str) -> list[int]:
        """Return the pages that have the value; a language has its regions and scripts, too: `en` has `en-us`."""
        begin = f"{value}-"
        is_language = self.name == "lang"
        wanted = {
            code for code, each in enumerate(self.values) if each == value or (is_language and each.startswith(begin))
        }
        codes = self.codes
        return [page for page in pages if codes[page] in wanted] if wanted else []

    def count(self, pages: Iterable[int], grouped: Iterable[tuple[int, int]] = ()) -> tuple[tuple[str, int], ...]:
        """Return the number of pages with each value, most pages first, without the empty value.

        Regions of a language count as the language. `grouped` are pages, each with what stands for its group: that
        counts once for a value.
        """
        named: Counter[str] = Counter()
        for code, number in Counter(map(self.codes.__getitem__, pages)).items():
            named[self._counted(code)] += number
        named.update(value for _, value in {(shown, self._counted(self.codes[page])) for page, shown in grouped})
        named.pop("", None)
        return tuple(sorted(named.items(), key=lambda pair: (-pair[1], pair[0])))

    def _counted(self, code: int) -> str:
        value = self.values[code]
        return without_region(value) if self.name == "lang" else value


class Properties:
    """The properties of all pages of a pack, as arrays by row id. `pages` is the number of pages."""

    def __init__(self, connection: sqlite3.Connection, *, pages: int) -> None:
        """Read the arrays. They were compared with the rows when the pack arrived (app/pack/properties.py).

        Raises ValueError for what no packer writes.
        """
        found = {
            name: (unpacked(width, numbers), texts) for name, width, numbers, texts in connection.execute(_PROPERTIES)
        }
        self.pages = pages
        #: Pages with a link to each page, its group of alternates, the page shown in place of it.
        self.inlinks = found["inlinks"][0]
        self.alternate_groups = found["alternate_group"][0]
        self.shown_as = found["shown_as"][0]
        self.copies = GroupedPages(found["copies"][0], found["shown"][0])
        self._days = found["date"][0]
        self._columns: dict[str, _Column] = {}
        for name in ("section", "lang", "type"):
            codes, values = found[name]
            texts = json.loads(values)
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise ValueError("values of a property that are no texts")
            self._columns[name] = _Column(name, tuple(texts[:_MAX_TEXTS]), codes)

    def scope(self, ordered: int) -> RankingScope:
        """Return the scope of searches in the pack, given the last row id in order of quality."""
        rows = len(self.shown_as)
        visible = 1 - len(self.copies.pages) / max(1, self.pages)
        return RankingScope(pages=self.pages, ordered=min(ordered, rows - 1), last=rows - 1, visible=max(0.0, visible))

    def filtered(self, pages: Sequence[int], filters: Filters, copies: CopiesByPage) -> Sequence[int]:
        """Return the pages that pass every filter, or one of whose copies does."""
        passing = self._passing(pages, filters)
        if len(passing) == len(pages) or not copies:
            return passing
        shown = {copy: page for page in pages if page in copies for copy in copies[page]}
        by_copy = {shown[copy] for copy in self._passing(list(shown), filters)} if shown else set()
        kept = by_copy.union(passing)
        return [page for page in pages if page in kept] if by_copy else passing

    def representatives(
        self, pages: Sequence[int], filters: Filters, copies: CopiesByPage, languages: Sequence[str]
    ) -> dict[int, int]:
        """Return the page to show for each page: of its group, one that passes the filters.

        Of several, one in the first of the languages is shown, and else the page itself.
        """
        is_own = filters == _NO_FILTERS and not languages
        groups = {} if is_own else {page: (page, *copies[page]) for page in pages if page in copies}
        if not groups:
            return {page: page for page in pages}
        passing = set(self._passing([each for group in groups.values() for each in group], filters))
        rank = self.language_rank(languages)
        # Of equal ranks the first is taken, which is the page itself.
        return {
            page: min((each for each in groups.get(page, (page,)) if each in passing), key=rank, default=page)
            for page in pages
        }

    def language_rank(self, languages: Sequence[str]) -> Callable[[int], int]:
        """Return what ranks a page by the first of the languages that it is in; pages in none come last."""
        wanted = [f"{language.lower()}-" for language in languages]

        def rank(page: int) -> int:
            lang = f"{self.of('lang', page)}-"
            return next((at for at, tag in enumerate(wanted) if lang.startswith(tag)), len(wanted))

        return rank

    def _passing(self, pages: Sequence[int], filters: Filters, *, ignoring: str = "") -> Sequence[int]:
        """Return the pages that pass every filter themselves, except the filter of `ignoring`, which is ignored."""
        for name, column in self._columns.items():
            value: str = getattr(filters, name)
            if name != "section":  # Languages and types are stored in lower case.
                value = value.lower()
            if value and name != ignoring:
                pages = column.having(pages, value)
        return pages

    def facets(self, pages: Sequence[int], filters: Filters, copies: CopiesByPage) -> tuple[Facet, ...]:
        """Count the pages by each property with the filters of the others; leave out properties with one value.

        A page with copies counts for the values of all of them. Its alternates count as one.
        """
        groups = self.alternate_groups
        grouped = [page for page in pages if groups[page] or page in copies]
        alone = list(set(pages).difference(grouped)) if grouped else pages
        # A group of alternates has the negative of its number.
        shown = {each: -groups[page] or page for page in grouped for each in (page, *copies.get(page, ()))}
        members = tuple(shown)

        def counts(name: str, column: _Column) -> tuple[tuple[str, int], ...]:
            in_groups = ((page, shown[page]) for page in self._passing(members, filters, ignoring=name))
            return column.count(self._passing(alone, filters, ignoring=name), in_groups)

        counted = (
            Facet(name=name, counts=counts(name, column))
            for name, column in self._columns.items()
            if len(column.values) > 2
        )
        return tuple(Facet(name=each.name, counts=each.counts[:_VALUES]) for each in counted if len(each.counts) > 1)

    def newest_first(
        self, pages: Sequence[int], filters: Filters, copies: CopiesByPage, languages: Sequence[str]
    ) -> list[int]:
        """Return the pages by the date of the page that is shown for each, undated ones last.

        Pages of one date keep their order.
        """
        # Most pages have no copies, and to look each up takes longer than to sort them.
        shown = self.representatives([*set(copies).intersection(pages)], filters, copies, languages)

        def day(page: int) -> int:
            return self._days[shown.get(page, page)]

        return sorted(pages, key=day, reverse=True)

    def of(self, name: str, page: int) -> str:
        """Return the value of a property, `section`, `lang` or `type`, of a page."""
        column = self._columns[name]
        return column.values[column.codes[page]]


def multiplied(facets: Iterable[Facet], factor: float) -> tuple[Facet, ...]:
    """Return the facets, if each page that was counted stands for several, with estimates."""
    if factor == 1:
        return tuple(facets)
    return tuple(
        replace(facet, counts=tuple((value, rounded(number * factor)) for value, number in facet.counts))
        for facet in facets
    )


def without_region(tag: str) -> str:
    """Return a language tag in lower case up to its script: `en` for `en-us`, `zh-hant` for `zh-hant-tw`."""
    language, _, rest = tag.partition("-")
    script = rest.partition("-")[0]
    return f"{language}-{script}" if len(script) == _SCRIPT and script.isalpha() else language
