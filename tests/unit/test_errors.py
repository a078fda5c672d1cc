"""The error tree: no two classes share a reason, replies follow from the class alone, and which errors are outages."""

from __future__ import annotations

import errno
import importlib
import pkgutil
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.exceptions import (
    BusyLoadingError,
    ConnectionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
)

import app
from app.broker.errors import ApplicationError, Postpone
from app.cluster.protocol import error_of, problem_reply
from app.errors import ConnectionFailed, PackError, StoreError, lacks_descriptors, lacks_space
from app.http.fetcher import Fetcher
from app.pack.database import create
from app.redis_state.outage import is_outage
from app.web.problems import PROBLEMS
from config.settings import Settings
from tasks import timers
from tests.support.limits import no_free_descriptors
from tests.support.stores import folder_store

pytestmark = pytest.mark.unit

for module in pkgutil.walk_packages(app.__path__, "app."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)


def subclasses(parent: type[ApplicationError]) -> Iterator[type[ApplicationError]]:
    for child in parent.__subclasses__():
        if child.__module__.startswith("app."):
            yield child
            yield from subclasses(child)


ERRORS: tuple[type[ApplicationError], ...] = (ApplicationError, *dict.fromkeys(subclasses(ApplicationError)))


def test_no_two_error_classes_state_the_same_reason() -> None:
    reasons = Counter(error.reason for error in ERRORS if "reason" in vars(error))
    assert [reason for reason, count in reasons.items() if count > 1] == []


def test_the_web_application_explains_the_problem_type_of_every_error() -> None:
    assert {error.problem for error in ERRORS} == set(PROBLEMS.values())


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_each_error_class_has_a_code_in_replies_that_the_client_reads(error: type[ApplicationError]) -> None:
    raised = error.__new__(error)
    Exception.__init__(raised, "why")
    reply = problem_reply(raised, process="searcher")
    assert problem_reply(error_of(reply), process="client") == reply


def test_errors_of_a_full_disk_are_told_from_others(tmp_path: Path) -> None:
    with pytest.raises(PackError) as caught, create(tmp_path / "pack.sqlite") as database:
        database.executescript("PRAGMA max_page_count = 20; CREATE TABLE t AS SELECT randomblob(1000000)")
    assert lacks_space(caught.value)
    assert lacks_space(OSError(errno.ENOSPC, "No space left on device"))
    assert not lacks_space(OSError(errno.EACCES, "Permission denied"))
    assert not lacks_space(PackError("another"))


def test_errors_of_a_process_without_file_descriptors_are_told_from_those_of_a_message(tmp_path: Path) -> None:
    store = folder_store(tmp_path / "store")
    fetcher = Fetcher.of(Settings(allow_private_hosts=("127.0.0.0/8",)))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        with no_free_descriptors():
            with pytest.raises(ConnectionFailed) as fetched:
                fetcher.get(url)
            with pytest.raises(StoreError) as stored:
                store.put("content/a.example/1.json", b"{}")
    with pytest.raises(ConnectionFailed) as refused:
        fetcher.get(url)
    assert [lacks_descriptors(each.value) for each in (fetched, stored, refused)] == [True, True, False]


def test_a_message_waits_while_its_process_has_no_file_descriptors_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = folder_store(tmp_path / "store")
    monkeypatch.setattr(timers, "parse_message_domain", lambda _message: store.put("content/a.example/1.json", b"{}"))
    with no_free_descriptors(), pytest.raises(Postpone, match="no file descriptors are left here: "):
        timers.reset_timer(domain="a.example")


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("Connection refused"),
        TimeoutError("Timeout reading from socket"),
        BusyLoadingError("Redis is loading the dataset in memory"),
        OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
        ReadOnlyError("You can't write against a read only replica."),
        ResponseError("MISCONF Errors writing to the AOF file: No space left on device"),
        ResponseError("OOM command not allowed when used memory > 'maxmemory'. script: a1, on @user_script:1."),
    ],
    ids=lambda error: str(error)[:24],
)
def test_an_error_of_the_server_is_an_outage(error: RedisError) -> None:
    assert is_outage(error)


@pytest.mark.parametrize("text", ["WRONGTYPE Operation against a key", "ERR value is not an integer", "NOPERM no"])
def test_an_error_of_one_command_is_not(text: str) -> None:
    assert not is_outage(ResponseError(text))
