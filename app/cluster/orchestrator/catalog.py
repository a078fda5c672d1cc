"""The pack catalog: the packs in the store, as the orchestrator last read or learned them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from app.cluster.placement.model import Pack
from app.cluster.protocol import PackVersion


class PackCatalog:
    """The packs by domain, and the domains whose pack was deleted while a searcher still had it.

    A searcher may load a newer version than the catalog has. Such a version is trusted until the store has been read
    again. If the store then still has a lower generation, the pack was rebuilt from its first generation.
    """

    def __init__(self) -> None:
        self.packs: dict[str, Pack] = {}
        self.by_checksum: dict[str, Pack] = {}
        self.deleted: set[str] = set()
        self._refuted: set[str] = set()

    def update(self, pack: Pack, versions: Iterable[PackVersion]) -> bool:
        """Enter the version that the store has, given those on searchers; return whether anything changed."""
        refuted = {each.sha256 for each in versions if _is_later(each, pack)} - self._refuted
        if not refuted and self.packs.get(pack.domain) == pack:
            return False
        self._refuted |= refuted
        self._forget_checksum(pack.domain)
        self.packs[pack.domain] = self.by_checksum[pack.sha256] = pack
        self.deleted.discard(pack.domain)
        return True

    def delete(self, domain: str, *, is_on_searcher: bool) -> bool:
        """Note that the store has no pack of a domain; return whether a known pack was deleted."""
        self._forget_checksum(domain)
        was_known = self.packs.pop(domain, None) is not None or is_on_searcher
        if not was_known or domain in self.deleted:
            return False
        self.deleted.add(domain)
        return True

    def is_unknown(self, version: PackVersion) -> bool:
        """Return whether the store has not been read for this version's domain yet."""
        return version.domain not in self.packs and version.domain not in self.deleted

    def is_trusted(self, version: PackVersion) -> bool:
        """Return whether a version is of a later generation than the catalog's, and the store has not refuted it."""
        pack = self.packs.get(version.domain)
        return pack is not None and version.sha256 not in self._refuted and _is_later(version, pack)

    def prune(self, versions: Iterable[PackVersion], *, is_on_searcher: Callable[[str], bool]) -> None:
        """Drop entries about deleted domains and refuted versions that are on no searcher any more."""
        self.deleted = {domain for domain in self.deleted if is_on_searcher(domain)}
        if self._refuted:
            self._refuted &= {each.sha256 for each in versions}

    def _forget_checksum(self, domain: str) -> None:
        if domain in self.packs:
            self.by_checksum.pop(self.packs[domain].sha256, None)

    def pack(self, domain: str, versions: Iterable[PackVersion]) -> Pack | None:
        """Return the pack of a domain; of an unknown domain, that of the latest version on a searcher."""
        if domain in self.packs:
            return self.packs[domain]
        latest = max(filter(self.is_unknown, versions), key=lambda each: (each.generation, each.sha256), default=None)
        if latest is None:
            return None
        return Pack(domain=domain, sha256=latest.sha256, generation=latest.generation, size_mb=latest.size_mb)


def _is_later(version: PackVersion, pack: Pack) -> bool:
    return version.domain == pack.domain and version.sha256 != pack.sha256 and version.generation > pack.generation
