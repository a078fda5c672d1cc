"""`perennial store` with an S3 server over HTTP, and the check of stores that break the contract."""

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
    """Ignores If-Match, like a server without conditional writes."""

    def put(self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False) -> str:
        del if_match
        return super().put(key, data, if_absent=if_absent)


class IgnoresIfNoneMatch(FolderStore):
    """Ignores If-None-Match, and so overwrites an object."""

    def put(self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False) -> str:
        del if_absent
        return super().put(key, data, if_match=if_match)


class ChecksFirstWritesLater(FolderStore):
    """Compares the ETag, but writes only after every other writer has compared it, too."""

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
    ("broken", "message"),
    [
        (IgnoresIfMatch, "If-Match is ignored"),
        (IgnoresIfNoneMatch, "If-None-Match: [*] is ignored"),
        (ChecksFirstWritesLater, f"of {WRITERS} concurrent writers with the same If-Match, {WRITERS} succeeded"),
    ],
)
def test_a_store_without_correct_conditional_writes_is_reported(
    tmp_path: Path, broken: type[FolderStore], message: str
) -> None:
    store = broken(tmp_path)
    store.create()
    with pytest.raises(StoreError, match=message):
        check_conditional_writes(store)
    assert list(store.list("")) == []


def test_store_create_makes_the_bucket_once_and_checks_its_conditional_writes() -> None:
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


def test_an_unreachable_store_prints_one_line_and_exits_1(tmp_path: Path) -> None:
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
