"""The input and output of a placement decision."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from app.cluster.protocol import Load, PackVersion, Unload

Order = Load | Unload

#: Pending loads of one searcher at most: one that runs, and others so that the searcher never waits for the next.
LOADS_AT_ONCE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """The version of a domain's pack in the store. `size_mb` is of the database, rounded up."""

    domain: str
    sha256: str
    generation: int
    size_mb: int
    pages: int = 0
    built_at: str = ""

    def load(self) -> Load:
        """Return the order to load this version."""
        return Load(domain=self.domain, sha256=self.sha256, generation=self.generation, size_mb=self.size_mb)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFailure:
    """The number of failed loads of a version on a searcher, and the reason of the last one."""

    count: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearcherState:
    """A searcher, as of its last report.

    `free` is MB besides the held versions, which take `used` MB; the room for pending loads is not subtracted. `held`
    and `orders` are by domain; orders are pending. `failures` are by checksum, and `backing_off` has the checksums not
    to be retried yet. A searcher that is `leaving` gets no orders.
    """

    searcher_id: str
    free: int
    capacity: int
    used: int = 0
    held: Mapping[str, PackVersion] = field(default_factory=dict)
    orders: Mapping[str, Order] = field(default_factory=dict)
    failures: Mapping[str, LoadFailure] = field(default_factory=dict)
    backing_off: frozenset[str] = frozenset()
    leaving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """All that a placement decision depends on.

    `packs` are by domain; `deleted` are the domains whose pack was deleted. Versions of any other domain are left on
    their searchers. `trusted` are checksums of a later generation than in `packs`: they count as the newest version
    until the store has been read again.
    """

    packs: Mapping[str, Pack]
    searchers: tuple[SearcherState, ...]
    replicas: int
    deleted: Set[str] = frozenset()
    trusted: Set[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressedOrder:
    """An order for a searcher, and the reason for it, which is logged."""

    searcher_id: str
    order: Order
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The orders to send, and domain -> reason for the domains with a copy that cannot be placed now.

    `lack` is the reason for all other packs while there are fewer searchers than copies of each, empty otherwise.
    """

    orders: tuple[AddressedOrder, ...]
    unplaced: Mapping[str, str]
    lack: str = ""
