"""Scans of the store for domains that searchers report."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.cluster.orchestrator.store_scan import PackSource, StoreScan
from app.cluster.placement.model import Pack
from app.pack.manifest import read_manifest
from app.storage.folder import FolderStore
from tests.support.waiting import eventually

pytestmark = pytest.mark.unit


def test_invalid_domains_count_as_deleted_and_do_not_stop_a_scan(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)

    def pack(domain: str) -> Pack:
        manifest = read_manifest(store, domain)
        raise AssertionError(f"there is a manifest: {manifest}")

    named = frozenset({"../../etc/passwd", "a//b", "", "x\0y", "x" * 5_000, "\ud800", "never.example"})
    scan = StoreScan(PackSource(packs=list, pack=pack))
    scan.start(named, whole=True)
    result = eventually(scan.result, "the scan is finished")
    assert result is not None
    assert (result.error, result.whole, result.deleted) == ("", True, named)
