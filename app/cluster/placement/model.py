"""The contract of placing: the state that a decision is made from, and the decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.cluster.protocol import Holding, Load, Unload

Order = Load | Unload

#: Loads that a searcher is given at once: one at work, and others so that it never waits for the next.
LOADS_AT_ONCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """The version of a domain's pack that the store has. `size_mb` is of the database, rounded up."""

    domain: str
    sha256: str
    generation: int
    size_mb: int
    pages: int = 0
    built_at: str = ""

    def load(self) -> Load:
        """Return the order to load it."""
        return Load(domain=self.domain, sha256=self.sha256, generation=self.generation, size_mb=self.size_mb)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFailure:
    """That a searcher could not load a version, so often; the reason is the last one."""

    count: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearcherState:
    """A searcher as it last told of itself.

    `free` is MB besides what it holds; what the loads among `orders` need of it is still to be subtracted. `held` and
    `orders` are by domain; an order is one that was given, and is neither done nor failed. `failures` are
    by checksum, and `resting` those of them that are not to be tried yet. One that is `leaving` answers nothing new.
    """

    searcher_id: str
    free: int
    capacity: int
    held: Mapping[str, Holding] = field(default_factory=dict)
    orders: Mapping[str, Order] = field(default_factory=dict)
    failures: Mapping[str, LoadFailure] = field(default_factory=dict)
    resting: frozenset[str] = frozenset()
    leaving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """All that a decision depends on.

    `packs` are by domain. `gone` are domains whose pack is known to be no more; what is held of a domain that is in
    neither of the two is let alone. `trusted` are checksums that count as the newest version, for they are of a later
    generation than the one known of here.
    """

    packs: Mapping[str, Pack]
    searchers: tuple[SearcherState, ...]
    replicas: int
    gone: frozenset[str] = frozenset()
    trusted: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressedOrder:
    """An order for a searcher, and what it is for: a line in the log."""

    searcher_id: str
    order: Order
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What is to be told, and the domains of which copies cannot be placed now: domain -> why."""

    commands: tuple[AddressedOrder, ...]
    unplaced: Mapping[str, str]
