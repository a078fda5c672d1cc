"""The ledger of one round, and the rules that it must meet: pure functions over records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tests.chaos.sites import Get, SitePlan

#: The columns of the report that violations are counted in. `early` is a first pack that lacks pages.
Column = Literal["lost", "wrong", "early", "stuck", "duplicates"]

#: Effects that at-least-once delivery may repeat.
Effect = Literal["fetch", "pack", "letter"]

#: The task of a page: the page that always fails leaves a dead letter of it.
PAGE_TASK = "site.page"


@dataclass(frozen=True, slots=True)
class PackRecord:
    """One generation of a domain's pack; `contents` are title and body by path."""

    domain: str
    generation: int
    kind: str
    contents: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter about a page, or about a whole domain (`path` empty)."""

    domain: str
    task: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class Remains:
    """What is left when a round ends. `queued` counts messages by queue, dead sets and ticks excepted."""

    timers: Sequence[str] = ()
    open_messages: Mapping[str, int] = field(default_factory=dict)
    queued: Mapping[str, int] = field(default_factory=dict)
    not_running: Sequence[str] = ()
    #: Processes that ended although no fault ended them, with their exit status.
    ended: Sequence[str] = ()
    #: Domains whose newest pack no searcher serves.
    unserved: Sequence[str] = ()
    #: URLs of open messages by domain.
    open_urls: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: Log lines of ticks about pages that were published again.
    published_again: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The records of one round. One `index+crawl` was posted for each domain of `sites`.

    `repeatable` are the effects that the faults of the round may repeat.
    """

    sites: Mapping[str, SitePlan]
    gets: Sequence[Get] = ()
    stored: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    packs: Sequence[PackRecord] = ()
    letters: Sequence[Letter] = ()
    remains: Remains = Remains()
    repeatable: frozenset[Effect] = frozenset()

    def packs_of(self, domain: str) -> list[PackRecord]:
        """Return the generations of a domain's pack, the first one first."""
        return sorted((each for each in self.packs if each.domain == domain), key=lambda each: each.generation)

    def expected_letters(self) -> set[Letter]:
        """Return the dead letters of the pages that always fail."""
        return {Letter(domain, PAGE_TASK, path) for domain, site in self.sites.items() for path in site.of_kind("dead")}


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation of a rule."""

    rule: str
    column: Column
    detail: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.detail}"


def violations(ledger: Ledger) -> list[Violation]:
    """Return every violation of every rule."""
    return [Violation(rule, column, detail) for rule, (column, find) in RULES.items() for detail in find(ledger)]


def duplicates(ledger: Ledger) -> Counter[Effect]:
    """Count repeated effects: good answers to a page, packs of a domain and letters of a message after the first."""
    good = Counter((each.domain, each.path) for each in ledger.gets if each.status == 200)
    newest = [max((each.generation for each in ledger.packs_of(domain)), default=1) for domain in ledger.sites]
    return Counter(
        {
            "fetch": good.total() - len(good),
            "pack": sum(newest) - len(newest),
            "letter": len(ledger.letters) - len(set(ledger.letters)),
        }
    )


# Rules


def _pages_missing_from_the_last_pack(ledger: Ledger) -> Iterator[str]:
    for domain, site in ledger.sites.items():
        packs = ledger.packs_of(domain)
        for path in sorted(site.fetchable - (packs[-1].contents.keys() if packs else set())):
            where = "stored" if path in ledger.stored.get(domain, {}) else "not stored"
            yield f"{domain}{path} ({where})"


def _missing_letters(ledger: Ledger) -> Iterator[str]:
    missing = ledger.expected_letters() - set(ledger.letters)
    return (f"{each.task} of {each.domain}{each.path}" for each in sorted(missing, key=str))


def _pages_missing_from_the_first_pack(ledger: Ledger) -> Iterator[str]:
    for domain, site in ledger.sites.items():
        for first in ledger.packs_of(domain)[:1]:
            missing = site.fetchable - first.contents.keys()
            if missing:
                yield f"{first.kind} pack {first.generation} of {domain} lacks {len(missing)} pages"


def _wrong_texts(ledger: Ledger) -> Iterator[str]:
    held = [(f"pack {each.generation} of {each.domain}", each.domain, each.contents) for each in ledger.packs]
    held += [(f"content of {domain}", domain, contents) for domain, contents in ledger.stored.items()]
    for holder, domain, contents in held:
        site = ledger.sites[domain]
        for path, content in contents.items():
            if path not in site.fetchable:
                yield f"{holder}: {path} is no page of the site"
            elif content != site.pages[path].content:
                yield f"{holder}: {path} has {content[:60]!r}, not {site.pages[path].content[:60]!r}"


def _unexpected_letters(ledger: Ledger) -> Iterator[str]:
    unexpected = set(ledger.letters) - ledger.expected_letters()
    return (f"{each.task} of {each.domain}{each.path}" for each in sorted(unexpected, key=str))


def _missing_full_packs(ledger: Ledger) -> Iterator[str]:
    for domain, site in ledger.sites.items():
        full = [each for each in ledger.packs_of(domain) if each.kind == "full"]
        if not any(each.contents.keys() >= site.fetchable for each in full):
            yield f"{domain} has no full pack with every page"


def _open_messages(ledger: Ledger) -> Iterator[str]:
    for domain, count in ledger.remains.open_messages.items():
        if count:
            yield f"{count} of {domain}: {' '.join(ledger.remains.open_urls.get(domain, ()))}"


def _queued_messages(ledger: Ledger) -> Iterator[str]:
    return (f"{count} in {queue}" for queue, count in ledger.remains.queued.items() if count)


def _forbidden_duplicates(ledger: Ledger) -> Iterator[str]:
    found = duplicates(ledger)
    return (f"{found[effect]} of {effect}" for effect in found if found[effect] and effect not in ledger.repeatable)


#: Each rule with the column that its violations are counted in.
RULES: Mapping[str, tuple[Column, Callable[[Ledger], Iterable[str]]]] = {
    "every page that can be fetched is in the last pack": ("lost", _pages_missing_from_the_last_pack),
    "each message that always fails leaves a dead letter": ("lost", _missing_letters),
    "every text is that of its page": ("wrong", _wrong_texts),
    "no other message is dead": ("wrong", _unexpected_letters),
    "the first pack has every page": ("early", _pages_missing_from_the_first_pack),
    "a full pack comes in the end": ("stuck", _missing_full_packs),
    "no timer is left": ("stuck", lambda ledger: ledger.remains.timers),
    "no open message is left": ("stuck", _open_messages),
    "no page waits to be published again": ("stuck", lambda ledger: ledger.remains.published_again),
    "no message waits in a queue": ("stuck", _queued_messages),
    "every process runs": ("stuck", lambda ledger: ledger.remains.not_running),
    "no process ended by itself": ("stuck", lambda ledger: ledger.remains.ended),
    "a searcher serves the newest pack": ("stuck", lambda ledger: ledger.remains.unserved),
    "only a fault that redelivers repeats an effect": ("duplicates", _forbidden_duplicates),
}
