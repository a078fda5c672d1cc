"""Flower's login: whatever went wrong when it was written, Flower never accepts an empty one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from config.settings import ROOT, Settings
from tests.support.command import completed

pytestmark = pytest.mark.unit

#: Reads the login as Flower does, on a disk that has room for `sys.argv[1]` bytes.
ON_A_FULL_DISK = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
from config.settings import Settings
print(Settings().flower_login)
"""


def test_a_login_is_generated_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    login = settings.flower_login
    assert login.startswith("flower:")
    assert len(login) > len("flower:") + 12
    assert settings.flower_login == login
    assert settings.flower_login_file.stat().st_mode & 0o777 == 0o600
    assert list(settings.data_dir.iterdir()) == [settings.flower_login_file]


@pytest.mark.parametrize("room", [0, 5])
def test_a_disk_that_is_full_leaves_no_login_and_the_next_start_makes_one(tmp_path: Path, room: int) -> None:
    environment = {**os.environ, "PERENNIAL_DATA_DIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", ON_A_FULL_DISK, str(room)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert Settings(data_dir=tmp_path).flower_login.startswith("flower:")


def test_flower_does_not_start_with_a_file_that_has_no_login(tmp_path: Path) -> None:
    for content in ("", "flower", ":secret", "flower:\n"):
        (tmp_path / "flower-login").write_text(content)
        with pytest.raises(ValueError, match="has no login"):
            Settings(data_dir=tmp_path).flower_login  # noqa: B018 - It is read.
    environment = {**os.environ, "PERENNIAL_DATA_DIR": str(tmp_path)}
    done = completed(environment, "config.flowerconfig")
    assert done.returncode == 1
    assert done.stderr.startswith(f"Flower does not start: {tmp_path}/flower-login has no login; delete it")


def test_a_login_may_end_with_the_line_that_an_editor_adds(tmp_path: Path) -> None:
    (tmp_path / "flower-login").write_text("me:pass word:1\n")
    assert Settings(data_dir=tmp_path).flower_login == "me:pass word:1"


@pytest.mark.parametrize("login", ["me", "me:", ":secret4711", "me:secret4711\nyou:other"])
def test_a_given_login_without_user_or_password_is_a_wrong_setting_and_is_not_quoted(login: str) -> None:
    with pytest.raises(ValidationError, match=r"flower_basic_auth\n.*expected user:password") as raised:
        Settings.model_validate({"flower_basic_auth": login})
    assert "secret4711" not in str(raised.value)
