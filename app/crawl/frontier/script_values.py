"""What the scripts `complete` and `enter` take and return of a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from app.crawl.frontier.values import Completion, Entered, admitted_of, to_entry
from app.crawl.record.entries import Former

#: Begins the names by which a process caches excluded pages, so that a link that is followed still counts as new.
_EXCLUDED = "excluded "

#: Characters of an error that are kept of a page's last failure.
MAX_ERROR = 300


class FoundLinks:
    """The links and the excluded links of a completion by the names by which a process caches them."""

    def __init__(self, page: Completion) -> None:
        self._page = page
        self._links = {link.name: link for link in page.links}
        # A menu repeats excluded URLs on each page of a site. Of two reasons, the first one counts.
        self._excluded = {f"{_EXCLUDED}{link.name}": (reason, link) for reason, link in reversed(list(page.excluded))}

    def names(self) -> Iterator[str]:
        """Yield the names of the links, then of the excluded ones."""
        return chain(self._links, self._excluded)

    def taken(self, unseen: set[str]) -> tuple[list[str], list[str], list[object]]:
        """Take the unseen names of the page; return those of links and excluded links, and the page for the script."""
        fresh = [each for each in self._links if each in unseen]
        noted = [each for each in reversed(self._excluded) if each in unseen]
        unseen.difference_update(fresh, noted)
        page = self._page
        fields: list[object] = [page.name, page.state, int(page.indexed), page.error[:MAX_ERROR] or page.line]
        fields += [page.text, len(page.canonical_key), len(fresh), len(noted)]
        for each in fresh:
            fields += (each, to_entry(self._links[each]))
        for reason, link in map(self._excluded.__getitem__, noted):
            fields += (reason, link.name, to_entry(link))
        return fresh, noted, fields


def take_unseen(
    pages: Iterable[FoundLinks], unseen: set[str]
) -> tuple[Sequence[Sequence[str]], Sequence[str], Sequence[object]]:
    """Take the unseen names, each for the first page that has it.

    Return those of the links of each page, those of all excluded links, and the pages for the script.
    """
    fresh, noted, arguments = [], list[str](), list[object]()
    for page in pages:
        names, excluded, fields = page.taken(unseen)
        fresh.append(names)
        noted += excluded
        arguments += fields
    return fresh, noted, arguments


def entered_of(row: Sequence[object], *, soft_404: str, former_known: bool) -> Entered:
    """Return the begin of a page's run as the script says it: an action and its values."""
    action, *values = map(str, row)
    match action:
        case "spent":
            return Entered(fetch=False, spent=values[0])
        case "not-due":
            return Entered(fetch=False, former=Former.from_text(values[0]), not_due=True)
        case "fetch":
            former = Former.from_text(values[0]) if values[0] else None
            return Entered(fetch=True, former=former, soft_404=soft_404, former_known=former_known)
    return Entered(fetch=False, handover=admitted_of(values, 0.0))
