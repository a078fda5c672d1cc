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


LATER = replace(COMPLETE, packed_crawl_began=BEGAN + timedelta(seconds=1))
FAILED = replace(COMPLETE, start_page_failed=True)


@pytest.mark.parametrize(
    ("crawl", "force", "plan"),
    [
        (None, False, FullPackPlan()),
        (COMPLETE, False, ITS_PAGES),
        (replace(COMPLETE, packed_crawl_began=BEGAN), False, ITS_PAGES),
        (replace(COMPLETE, left_out_page_ids=["c"]), False, replace(ITS_PAGES, left_out_page_ids=["c"])),
        (replace(COMPLETE, reached_limit=True), False, ALL_PAGES),
        (replace(COMPLETE, unfollowed_page_ids=["b"]), False, ALL_PAGES),
        (LATER, False, UPDATE),
        (LATER, True, ITS_PAGES),
        (FAILED, True, ITS_PAGES),
        (replace(FAILED, reached_limit=True), True, ALL_PAGES),
    ],
)
def test_a_crawl_decides_on_vanished_pages_only_if_it_is_complete_and_the_latest(
    crawl: FinishedCrawl | None, force: bool, plan: FullPackPlan | None
) -> None:
    assert plan_full_pack("site.gov", crawl, force=force) == plan


def test_a_crawl_whose_start_page_failed_is_refused() -> None:
    with pytest.raises(PackRefused, match=r"site\.gov: the start page https://site\.gov/ failed"):
        plan_full_pack("site.gov", FAILED, force=False)


PACKER = """
import pathlib, signal, sys
from app.pack.work_folder import work_folder
with work_folder(pathlib.Path(sys.argv[1])) as folder:
    (folder / "new.sqlite").write_bytes(bytes(1000))
    print(folder, flush=True)
    signal.pause()
"""


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
        assert not left.exists()
        assert folder.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"pack-of-the-user", CREATION_LOCK}
