"""Scans of the store for packs, and which missing packs count as deleted."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from app.cluster.orchestrator.store_scan import ALWAYS_DELETABLE, ScanResult, ScanSchedule, StoreGuard, StoreScan
from app.errors import PackCorrupt
from app.pack.download import download_pack_to
from app.storage.layout import manifest_key
from app.storage.marker import create_marker, read_marker
from app.storage.store import ObjectStore
from tests.packs import page, publish, write_pack
from tests.support.stores import folder_store
from tests.support.waiting import eventually

pytestmark = pytest.mark.unit


def test_invalid_domains_count_as_deleted_and_do_not_stop_a_scan(tmp_path: Path) -> None:
    named = frozenset({"../../etc/passwd", "a//b", "", "x\0y", "x" * 5_000, "\ud800", "never.example"})
    result = finished(folder_store(tmp_path), domains=named)
    assert (result.error, result.whole, result.deleted) == ("", True, named)


def finished(store: ObjectStore, *, domains: Collection[str] = ()) -> ScanResult:
    """Scan a whole store as the orchestrator does."""
    scan = StoreScan(lambda: store)
    scan.start(frozenset(domains), whole=True)
    result = eventually(lambda: scan.result(), "the scan is finished")
    assert result is not None
    return result


def test_a_listing_does_not_undo_what_was_read_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, is_listed, goes_on = folder_store(tmp_path), threading.Event(), threading.Event()
    schedule = ScanSchedule(lambda: store, check=lambda result, _: result)

    def marker_of(store: ObjectStore) -> str:
        if not is_listed.is_set():
            is_listed.set()
            assert goes_on.wait(30)
        return read_marker(store)

    def start() -> None:
        schedule.start_due(domains=lambda: frozenset({"new.example"}), unclear=frozenset, now=0.0)

    def result() -> ScanResult:
        [found] = eventually(lambda: [*schedule.results(domains=frozenset, now=0.0)], "a scan is finished")
        return found

    monkeypatch.setattr("app.cluster.orchestrator.store_scan.read_marker", marker_of)
    publish(store, write_pack(tmp_path / "old.sqlite", [page("/a")]))
    start()
    assert is_listed.wait(30)
    publish(store, write_pack(tmp_path / "newer.sqlite", [page("/a")], generation=2), generation=2)
    publish(store, write_pack(tmp_path / "new.sqlite", [page("/a")], domain="new.example"), domain="new.example")
    for domain in ("site.example", "new.example"):
        schedule.request(domain)
    start()
    assert {pack.domain: pack.generation for pack in result().packs} == {"site.example": 2, "new.example": 1}
    goes_on.set()
    listing = result()
    assert (listing.whole, listing.packs, listing.deleted) == (True, (), frozenset())


def test_the_manifest_of_another_domain_is_damaged_and_searchers_keep_the_pack_of_its_key(tmp_path: Path) -> None:
    store = folder_store(tmp_path / "store")
    for domain in ("a.example", "b.example"):
        publish(store, write_pack(tmp_path / domain, [page("/a")], domain=domain), domain=domain)
    store.put(manifest_key("a.example"), store.get(manifest_key("b.example")).data)
    result = finished(store, domains=["a.example"])
    assert ([pack.domain for pack in result.packs], result.deleted) == (["b.example"], frozenset())
    with pytest.raises(PackCorrupt, match=r"not a pack manifest of a\.example, but of 'b\.example'"):
        download_pack_to(store, "a.example", tmp_path / "fetched")


def test_a_store_without_marker_gets_one_when_packs_are_found(tmp_path: Path) -> None:
    store = folder_store(tmp_path)
    assert finished(store).store_id == ""
    publish(store, write_pack(tmp_path / "pack.sqlite", [page("/a")]))
    result = finished(store)
    assert result.store_id == read_marker(store) != ""
    assert finished(store).store_id == create_marker(store) == result.store_id


DOMAINS = frozenset(f"{number}.example" for number in range(10))


def scanned(store_id: str, missing: int = 0) -> ScanResult:
    return ScanResult(store_id=store_id, deleted=frozenset(sorted(DOMAINS)[:missing]), whole=True)


def test_a_store_without_marker_and_another_one_are_ignored_while_packs_are_known() -> None:
    guard = StoreGuard()
    assert guard.check(scanned(""), frozenset()) == scanned("")
    assert guard.check(scanned("", 1), DOMAINS) is None
    # A store whose deletions are held back does not become the known one.
    assert guard.check(scanned("wrong", 10), DOMAINS) == scanned("wrong")
    assert guard.check(scanned("a", 1), DOMAINS) == scanned("a", 1)
    assert guard.check(scanned("b", 1), DOMAINS) is None
    assert guard.check(scanned("a", 1), DOMAINS) == scanned("a", 1)
    assert guard.check(scanned("b"), frozenset()) == scanned("b")


@pytest.mark.parametrize(
    ("packs", "missing", "believed"),
    [(10, 5, 5), (10, 6, 0), (4, ALWAYS_DELETABLE, ALWAYS_DELETABLE), (4, ALWAYS_DELETABLE + 1, 0)],
)
def test_more_than_a_share_of_the_packs_is_never_deleted_at_once(packs: int, missing: int, believed: int) -> None:
    result = StoreGuard().check(scanned("a", missing), frozenset(sorted(DOMAINS)[:packs]))
    assert result == scanned("a", believed)


def test_several_scans_delete_no_more_packs_than_one_may() -> None:
    guard, domains, kept = StoreGuard(), DOMAINS, []
    for _ in range(4):
        missing = frozenset(sorted(domains)[:2])
        result = guard.check(ScanResult(store_id="a", deleted=missing), domains)
        assert result is not None
        domains -= result.deleted
        kept.append(len(domains))
    assert kept == [8, 6, 6, 6]


def test_a_removed_site_that_is_still_served_leaves_the_bound_of_the_others_as_it_is() -> None:
    guard, served = StoreGuard(), frozenset(sorted(DOMAINS)[5:])
    assert guard.check(scanned("a", 5), DOMAINS) == scanned("a", 5)
    [removed, vanished, *_] = sorted(served)
    for _ in range(5):
        result = ScanResult(store_id="a", deleted=frozenset({removed}), removed=frozenset({removed}))
        assert guard.check(result, served) == result
    both = replace(result, deleted=frozenset({removed, vanished}))
    assert guard.check(both, served) == result


def test_new_packs_make_room_for_deletions() -> None:
    guard = StoreGuard()
    assert guard.check(scanned("a", 5), DOMAINS) == scanned("a", 5)
    grown = frozenset(sorted(DOMAINS)[5:]) | {f"new-{number}.example" for number in range(5)}
    result = ScanResult(store_id="a", deleted=frozenset(sorted(DOMAINS)[5:]))
    assert guard.check(result, grown) == result


def test_a_domain_without_a_known_pack_does_not_count_as_deleted() -> None:
    result = ScanResult(store_id="a", deleted=frozenset(f"unknown-{number}.example" for number in range(9)))
    assert StoreGuard().check(result, DOMAINS) == result


def test_a_refusal_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    guard = StoreGuard()
    for _ in range(3):
        guard.check(scanned("a", 10), DOMAINS)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "lacks 10 of 10 known packs" in caplog.text
