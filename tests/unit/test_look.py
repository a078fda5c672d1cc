"""A look into the store at domains of which a searcher says that it holds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.cluster.orchestrator.store_scan import PackSource, StoreScan
from app.cluster.placement.model import Pack
from app.pack.manifest import read_manifest
from app.storage.folder import FolderStore
from tests.support.waiting import eventually

pytestmark = pytest.mark.unit


def test_what_no_store_can_have_is_gone_and_hinders_no_look(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)

    def pack(domain: str) -> Pack:
        manifest = read_manifest(store, domain)
        raise AssertionError(f"there is a manifest: {manifest}")

    named = frozenset({"../../etc/passwd", "a//b", "", "x\0y", "x" * 5_000, "\ud800", "never.example"})
    look = StoreScan(PackSource(packs=list, pack=pack))
    look.begin(named, whole=True)
    found = eventually(look.take, "the look is over")
    assert found is not None
    assert (found.error, found.whole, found.gone) == ("", True, named)
