"""Work folders of packers: removed at the end, and after a kill by the next packer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from app.pack.work_folder import CREATION_LOCK, work_folder

pytestmark = pytest.mark.unit

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
