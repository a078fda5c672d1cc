"""Packs of the judged sites, by this project's extractor and packer; extracted pages are kept for the next run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from app.pack.packer import pack_full
from app.pack.plan import FullPackPlan
from app.storage.folder import FolderStore
from app.storage.layout import content_key, page_id, to_json
from benchmarks import packs, sites
from benchmarks.names import indexes
from benchmarks.sites import DebianSite
from config.settings import ROOT
from tests.packs import fetch_pack

SITES: Final = {
    **sites.SITES,
    "git-doc": DebianSite("git-doc", "usr/share/doc/git-doc"),
    "cmake-doc": DebianSite("cmake-doc", "usr/share/doc/cmake-data/html"),
    "gimp-help-de": DebianSite("gimp-help-de", "usr/share/gimp/2.0/help/de"),
    "gimp-help-fr": DebianSite("gimp-help-fr", "usr/share/gimp/2.0/help/fr"),
    "debian-reference-ja": DebianSite("debian-reference-ja", "usr/share/debian-reference"),
    **{name: each.site for name, each in indexes.SITES.items()},
    "borgbackup-doc": DebianSite("borgbackup-doc", "usr/share/doc/borgbackup/html"),
    "debian-handbook": DebianSite("debian-handbook", "usr/share/doc/debian-handbook/html/en-US"),
    "libvirt-doc": DebianSite("libvirt-doc", "usr/share/doc/libvirt-doc/html"),
    "octave-doc": DebianSite("octave-doc", "usr/share/doc/octave/octave.html"),
    "postfix-doc": DebianSite("postfix-doc", "usr/share/doc/postfix/html"),
    "varnish-doc": DebianSite("varnish-doc", "usr/share/doc/varnish/html"),
}
#: Sources whose change makes extracted pages stale.
_SOURCES: Final = (
    "app/crawl/parse/classify.py",
    "app/crawl/urls.py",
    "app/storage/layout.py",
    "app/storage/page_parts.py",
    "app/text/anchor_texts.py",
    "app/text/names.py",
)
_COMPLETE: Final = "complete"


def build(names: Iterable[str], folder: Path) -> dict[str, Path]:
    """Return the decompressed pack of each site, with all files below `folder`.

    Missing packages are downloaded. Raises BenchmarkError when a download fails.
    """
    return {name: _pack(name, _stored(name, folder), folder) for name in names}


def domain_of(site: str) -> str:
    """Return the domain under which a site is packed."""
    return f"{site}.example"


def _stored(name: str, folder: Path) -> FolderStore:
    """Return a store with the extracted pages of a site."""
    downloads, domain = folder / "sites", domain_of(name)
    pages = sites.unpack(SITES[name], downloads)
    store = FolderStore(folder / "relevance" / f"{name}-{_digest(sites.version(SITES[name], downloads))}")
    if not (store.root / _COMPLETE).exists():
        store.create()
        for page in packs.pages(domain, pages):
            store.put(content_key(domain, page_id(page.canonical_key)), to_json(page))
        (store.root / _COMPLETE).touch()
    return store


def _digest(version: str) -> str:
    """Return a hash of a package's version and of the code that extracts its pages."""
    extractor = sorted((ROOT / "app/crawl/parse/extract").glob("*.py"))
    sources = [*(ROOT / source for source in _SOURCES), *extractor]
    return hashlib.sha256(version.encode() + b"".join(map(Path.read_bytes, sources))).hexdigest()[:16]


def _pack(name: str, store: FolderStore, folder: Path) -> Path:
    # By force: the pack of the same pages may be one of an earlier packer.
    pack_full(store, domain_of(name), FullPackPlan(crawl_id="bench"), force=True)
    return fetch_pack(store, domain_of(name), folder / "relevance" / "packs")
