"""`perennial store` against an S3 server over HTTP, and the probe against stores that break the contract."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

from app.errors import PreconditionFailed, StoreError
from app.storage.folder import FolderStore
from app.storage.open import WRITERS, check_conditional_writes
from tests.servers.s3 import s3_server

pytestmark = pytest.mark.integration


class IgnoresIfMatch(FolderStore):
    """Takes the header and forgets it, as servers do that never heard of conditional writes."""

    def put(self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False) -> str:
        del if_match
        return super().put(key, data, if_absent=if_absent)


class IgnoresIfNoneMatch(FolderStore):
    """Overwrites what it was told not to."""

    def put(self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False) -> str:
        del if_absent
        return super().put(key, data, if_match=if_match)


class ChecksFirstWritesLater(FolderStore):
    """Compares the ETag, and writes when every other writer has compared it too."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._compared = threading.Barrier(WRITERS)

    def put(self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False) -> str:
        if if_match is None:
            return super().put(key, data, if_absent=if_absent)
        if self.stat(key).etag != if_match:
            raise PreconditionFailed(key)
        self._compared.wait(10)
        return super().put(key, data)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (IgnoresIfMatch, "If-Match is ignored"),
        (IgnoresIfNoneMatch, "If-None-Match: [*] is ignored"),
        (ChecksFirstWritesLater, f"of {WRITERS} writers at once with one If-Match, {WRITERS} succeeded"),
    ],
)
def test_a_store_whose_conditional_writes_do_not_hold_is_told(
    tmp_path: Path, broken: type[FolderStore], said: str
) -> None:
    store = broken(tmp_path)
    with pytest.raises(StoreError, match=said):
        check_conditional_writes(store)
    assert list(store.list("")) == []


def test_the_bucket_is_made_once_and_its_conditional_writes_are_tried() -> None:
    with s3_server() as server:
        settings = {"STORE_URL": f"s3://made-{uuid.uuid4()}/deep", "S3_ENDPOINT_URL": server.endpoint_url}
        environment = {**os.environ, **server.environment, **settings}

        def run(*arguments: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-c", "from app.cli.main import main; main()", "store", *arguments]
            return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

        missing = run("check")
        assert missing.returncode == 1
        assert "bucket does not exist" in missing.stderr
        for created in (True, False):
            done = run("create", "--json")
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout) == {
                "store": settings["STORE_URL"],
                "created": created,
                "conditional_writes": True,
            }
        assert run("check").stdout == f"{settings['STORE_URL']}: conditional writes hold\n"


def test_a_store_that_cannot_be_reached_is_one_line_and_exit_1(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "STORE_URL": "s3://b",
        "S3_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ACCESS_KEY_ID": "k",
    }
    environment |= {"AWS_SECRET_ACCESS_KEY": "k", "PERENNIAL_DATA_DIR": str(tmp_path)}
    command = [sys.executable, "-c", "from app.cli.main import main; main()", "store", "create"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("perennial: s3://b/")
    assert done.stderr.count("\n") == 1
