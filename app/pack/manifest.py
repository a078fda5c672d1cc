"""The manifest beside each pack in the store: it describes the pack, so that readers need not download it."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any, Final

from app.broker.errors import InvalidMessage
from app.errors import PackCorrupt, PackNotFound
from app.storage.layout import MANIFEST_PREFIX, MANIFEST_SUFFIX, announcement_key, manifest_key
from app.storage.reading import get_if_present, read_objects
from app.storage.store import ObjectStore

log = logging.getLogger(__name__)

#: The `kind` of a generation that a rollback made of a former one.
ROLLBACK: Final = "rollback"
#: The largest integer that every JSON implementation reads exactly (RFC 8259 section 6), and orders can have.
_MAX_NUMBER: Final = 2**53 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PackDescription:
    """What a manifest and the table `meta` of its pack both say. See `Manifest`."""

    domain: str
    kind: str
    generation: int
    crawl_id: str
    built_at: str
    pages: int

    def as_meta(self) -> dict[str, str]:
        """Return the entries of `meta`."""
        return {name: str(value) for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The description of a pack.

    `own_object` is the name of the object that this generation added, in which the table of all frames has `table_size`
    bytes from `table_start` on. `sha256` is that of the table, and identifies the version: the table has the hashes of
    all frames. `size` is that of the frames, `uncompressed_size` that of the database (bytes). `generation` counts the
    packs of a domain from 1, `kind` is `full`, `incremental` or `rollback`, `built_at` is UTC in ISO 8601. `crawl_id`
    is that of the last full pack, or empty. `former` is the generation to which a rollback leads; it has none itself.
    """

    domain: str
    sha256: str
    size: int
    uncompressed_size: int
    pages: int
    schema_version: int
    generation: int
    kind: str
    built_at: str
    crawl_id: str
    own_object: str
    table_start: int
    table_size: int
    former: Manifest | None = None

    def to_json(self) -> bytes:
        """Serialise with sorted keys."""
        return json.dumps(asdict(self), sort_keys=True, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes, *, domain: str) -> Manifest:
        """Read the output of `to_json` for a domain, ignoring fields of later releases.

        Raises PackCorrupt for any other bytes, also for the manifest of another domain: its pack has other pages.
        """
        try:
            loaded: dict[str, Any] = json.loads(data)
            former = loaded.get("former")
            manifest = cls(**_values_of(loaded), former=cls(**_values_of(former)) if former else None)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise PackCorrupt(f"not a pack manifest: {error!r}: {data[:80]!r}") from error
        if manifest.domain != domain:
            raise PackCorrupt(f"not a pack manifest of {domain}, but of {manifest.domain!r:.200}")
        return manifest


def _values_of(loaded: dict[str, Any]) -> dict[str, Any]:
    values = {field.name: loaded[field.name] for field in fields(Manifest) if field.name != "former"}
    for field in fields(Manifest):
        if field.name in values and type(values[field.name]).__name__ != field.type:
            raise PackCorrupt(f"pack manifest: {field.name} is {values[field.name]!r}, not of type {field.type}")
        if field.type == "int" and values[field.name] < 0:
            raise PackCorrupt(f"pack manifest: {field.name} is {values[field.name]}, a negative number")
        if field.type == "int" and values[field.name] > _MAX_NUMBER:
            raise PackCorrupt(f"pack manifest: {field.name} is {values[field.name]}, which is too large")
    if datetime.fromisoformat(values["built_at"]).tzinfo is None:
        raise PackCorrupt(f"pack manifest: built_at is {values['built_at']!r}, without a time zone")
    return values


def check_domain(domain: str) -> str:
    """Return the domain; raises InvalidMessage for one that is not a single path segment of an object key."""
    if not domain or len(domain) > 255 or domain.startswith(".") or not domain.isprintable() or "/" in domain:
        raise InvalidMessage(f"domain {domain!r}: not a host name with an optional port")
    return domain


def read_manifest(store: ObjectStore, domain: str) -> Manifest:
    """Return the manifest of a domain's pack; raises PackNotFound, PackCorrupt, InvalidMessage (domain), StoreError."""
    stored = get_if_present(store, manifest_key(check_domain(domain)))
    if stored is None:
        raise PackNotFound(f"{domain} has no pack")
    return Manifest.from_json(stored.data, domain=domain)


def readable_manifest(store: ObjectStore, domain: str) -> Manifest | None:
    """Return the same, or None for a domain without a pack and for a manifest that cannot be read."""
    with suppress(PackNotFound, PackCorrupt):
        return read_manifest(store, domain)
    return None


def list_manifests(store: ObjectStore) -> list[Manifest]:
    """Return the manifests of all domains, in key order. An invalid manifest is logged and left out."""
    manifests = []
    keys = [stat.key for stat in store.list(MANIFEST_PREFIX) if stat.key.endswith(MANIFEST_SUFFIX)]
    for key, stored in read_objects(store, keys):
        domain = key.removeprefix(MANIFEST_PREFIX).removesuffix(MANIFEST_SUFFIX)
        try:
            manifests += [Manifest.from_json(stored.data, domain=domain)] if stored else []
        except PackCorrupt as error:
            log.warning("Manifest %s ignored: %s", key, error)
    return manifests


# Announcements: which version of a pack was announced, noted beside the pack, so that none stays unannounced


def is_announced(store: ObjectStore, domain: str, sha256: str) -> bool:
    """Return whether the `update` event of this version was published, and that was noted; raises StoreError."""
    stored = get_if_present(store, announcement_key(domain))
    return stored is not None and stored.data == sha256.encode()


def note_announced(store: ObjectStore, domain: str, sha256: str) -> None:
    """Note that the broker has confirmed the `update` event of this version; raises StoreError."""
    store.put(announcement_key(domain), sha256.encode())
