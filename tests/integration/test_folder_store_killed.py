"""Writers of a folder store that are killed before each system call of a write."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.storage.etags import hash_of
from app.storage.folder import FolderStore
from tests.support.stores import without_attributes

pytestmark = pytest.mark.integration


#: It puts an object in a store of its own for each system call of `put`, killed just before that call, until none is
#: left; each line has the call's name, the last one is empty.
KILLED_PUTS = """
import errno, fcntl, itertools, json, os, pathlib, signal, sys
from app.storage.folder import FolderStore

root, condition, has_attributes = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3] == "True"

def not_supported(*arguments):
    raise OSError(errno.EOPNOTSUPP, "Operation not supported")

if not has_attributes:
    os.setxattr = os.getxattr = os.link = not_supported
calls = [(os, name) for name in ("open", "write", "stat", "fstat", "setxattr", "getxattr", "utime", "fsync", "link",
         "rename", "unlink", "close", "mkdir", "rmdir")] + [(fcntl, "flock")]

def put(number, pipe):
    counter = itertools.count(1)
    def killing(name, function):
        def call(*arguments, **named):
            if next(counter) == number:
                write(pipe, name.encode())
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **named)
        return call
    write, store = os.write, FolderStore(root / str(number))
    for module, name in calls:
        setattr(module, name, killing(name, getattr(module, name)))
    store.put("packs/k", b"new", **condition)

for number in itertools.count(1):
    store = FolderStore(root / str(number))
    store.create()
    if "if_absent" not in condition:
        store.put("packs/k", b"old")
    if not os.fork():
        put(number, 1)
        os._exit(0)
    status = os.wait()[1]
    print(flush=True)
    if status == 0:
        break
"""

ABSENT = {"if_absent": True}


@pytest.mark.parametrize("attributes", [True, False], ids=["attributes", "no attributes"])
@pytest.mark.parametrize("condition", [{}, ABSENT, {"if_match": hash_of(b"old")}], ids=["replace", "new", "if_match"])
def test_a_put_that_is_killed_before_any_system_call_leaves_the_old_or_the_new_object(
    tmp_path: Path, condition: dict[str, Any], attributes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", KILLED_PUTS, str(tmp_path), json.dumps(condition), str(attributes)]
    *killed, last = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert last == ""
    assert {"open", "write", "fsync", "close"} < set(killed)
    assert ({"setxattr", "link" if condition == ABSENT else "rename"} if attributes else {"rename"}) < set(killed)
    if not attributes:
        without_attributes(monkeypatch)
    states = []
    for number, call in enumerate([*killed, last], start=1):
        store = FolderStore(tmp_path / str(number))
        listed = list(store.list(""))
        data = store.get("packs/k").data if listed else b""
        states.append(data)
        assert [stat.etag for stat in listed] == ([hash_of(data)] if data else []), call
        # Nothing that the killed process left keeps the next one from writing.
        assert store.put("packs/k", b"next", if_match=hash_of(data) if data else None) == store.stat("packs/k").etag
    assert states == sorted(states, key=lambda data: data == b"new")
    assert {states[0], states[-1]} == {b"" if condition == ABSENT else b"old", b"new"}
