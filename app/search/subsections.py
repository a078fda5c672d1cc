"""Choose the subsections of a page that match a query: the one at which a hit opens, and others to list below it."""

from __future__ import annotations

from app.search.contract import Subsection
from app.search.query import Phrase, words
from app.search.snippet import matched_phrases, matching_lines

#: Subsections that are listed.
_LISTED = 3


def choose(text: str, *, title: str, phrases: tuple[Phrase, ...]) -> tuple[Subsection | None, tuple[Subsection, ...]]:
    """Return the subsection that matches more of the query than the title does, or None; and others that match.

    `text` has a line for each: fragment, tab, heading. Only subsections count that match as much as the best one, and
    at least half of the query.
    """
    named = (line.partition("\t") for line in text.split("\n"))
    all_of_them = {at: (fragment, heading) for at, (fragment, _, heading) in enumerate(named) if heading}
    if not any(matching_lines("\n".join(heading for _, heading in all_of_them.values()), phrases)):
        return None, ()
    matched = {at: len(matched_phrases(heading, phrases)) for at, (_, heading) in all_of_them.items()}
    most = max(matched.values())
    if 2 * most < len(phrases):
        return None, ()
    subsections = {
        at: Subsection(fragment=fragment, heading=heading)
        for at, (fragment, heading) in all_of_them.items()
        if matched[at] == most
    }
    # Of headings with the same words of the query, the shortest one is about them.
    best_first = sorted(subsections, key=lambda at: (len(words(subsections[at].heading)), at))
    opens_at = best_first.pop(0) if most > len(matched_phrases(title, phrases)) else None
    listed = tuple(subsections[at] for at in sorted(best_first[:_LISTED]))
    return (None if opens_at is None else subsections[opens_at]), listed
