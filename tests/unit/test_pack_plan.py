"""Which pages a full pack holds after a crawl, and work folders of packers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.errors import PackRefused
from app.pack.plan import FinishedCrawl, FullPackPlan, plan_full_pack
from app.pack.work_folder import CREATION_LOCK, work_folder

pytestmark = pytest.mark.unit

BEGAN = datetime(2026, 11, 22, 4, 0, tzinfo=UTC)
COMPLETE = FinishedCrawl(
    id="c1",
    start_url="https://site.gov/",
    began=BEGAN,
    start_page_failed=False,
    reached_limit=False,
    page_ids={"a", "b"},
    unfollowed_page_ids=(),
    packed_crawl_began=None,
)
ITS_PAGES = FullPackPlan(crawl_id="c1", page_ids={"a", "b"}, began=BEGAN)
ALL_PAGES = FullPackPlan(crawl_id="c1")
UPDATE = None


def test_a_pack_without_a_crawl_holds_every_stored_page() -> None:
    assert plan_full_pack("site.gov", None, force=False) == FullPackPlan()


@pytest.mark.parametrize(
    ("crawl", "plan"),
    [
        (COMPLETE, ITS_PAGES),
        (replace(COMPLETE, packed_crawl_began=BEGAN), ITS_PAGES),
        (replace(COMPLETE, left_out_page_ids=["c"]), replace(ITS_PAGES, left_out_page_ids=["c"])),
        (replace(COMPLETE, reached_limit=True), ALL_PAGES),
        (replace(COMPLETE, unfollowed_page_ids=["b"]), ALL_PAGES),
        (replace(COMPLETE, packed_crawl_began=BEGAN + timedelta(seconds=1)), UPDATE),
    ],
    ids=[
        "complete",
        "packed already",
        "with pages left out",
        "at a limit",
        "with lost pages",
        "earlier than the packed one",
    ],
)
def test_a_crawl_decides_on_vanished_pages_only_if_it_is_complete_and_the_latest(
    crawl: FinishedCrawl, plan: FullPackPlan | None
) -> None:
    assert plan_full_pack("site.gov", crawl, force=False) == plan


def test_a_crawl_whose_start_page_failed_is_refused() -> None:
    with pytest.raises(PackRefused, match=r"site\.gov: the start page https://site\.gov/ failed"):
        plan_full_pack("site.gov", replace(COMPLETE, start_page_failed=True), force=False)


def test_force_overrules_a_failed_start_page_and_a_later_pack_but_keeps_pages_of_a_partial_crawl() -> None:
    forced = replace(COMPLETE, start_page_failed=True, packed_crawl_began=BEGAN + timedelta(days=1))
    assert plan_full_pack("site.gov", forced, force=True) == ITS_PAGES
    assert plan_full_pack("site.gov", replace(forced, reached_limit=True), force=True) == ALL_PAGES


PACKER = """
import pathlib, signal, sys
from app.pack.work_folder import work_folder
with work_folder(pathlib.Path(sys.argv[1])) as folder:
    (folder / "new.sqlite").write_bytes(bytes(1000))
    print(folder, flush=True)
    signal.pause()
"""


def names(parent: Path) -> set[str]:
    return {path.name for path in parent.iterdir()} - {CREATION_LOCK}


def test_the_folder_of_a_killed_packer_is_removed_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    (tmp_path / "pack-of-the-user").mkdir()
    with subprocess.Popen([sys.executable, "-c", PACKER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as packer:
        assert packer.stdout is not None
        left = Path(packer.stdout.readline().strip())
        with work_folder(tmp_path):
            assert (left / "new.sqlite").exists()
        os.kill(packer.pid, signal.SIGKILL)
    assert (left / "new.sqlite").exists()
    with work_folder(tmp_path) as folder:
        assert names(tmp_path) == {"pack-of-the-user", folder.name, f"{folder.name}.lock"}
