"""What workers count while Redis fails: nothing is lost, and nothing waits for it."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from app.counters import COUNTERS, CountTable, status_label

pytestmark = pytest.mark.unit


class FailingRedis:
    """A Redis that answers no write while `is_away`; `writes` has the arguments of all of them."""

    def __init__(self) -> None:
        self.is_away = True
        self.writes: list[list[Any]] = []

    def register_script(self, _text: str) -> Callable[..., None]:
        def call(keys: list[str], args: list[Any]) -> None:
            del keys
            self.writes.append(args)
            if self.is_away:
                raise RedisConnectionError("away")

        return call


@pytest.fixture
def redis() -> FailingRedis:
    return FailingRedis()


@pytest.fixture
def table(redis: FailingRedis, monkeypatch: pytest.MonkeyPatch) -> CountTable:
    """Return a table whose thread writes nothing: the test does."""
    monkeypatch.setattr("app.counters._EVERY", 3_600.0)
    return CountTable(cast("Redis", redis))


def test_counts_stay_in_memory_while_redis_fails_and_each_write_is_repeated_unchanged(
    table: CountTable, redis: FailingRedis
) -> None:
    for _ in range(3):
        table.add("pages", ("indexed", ""), 1.0)
    assert not table.flush()
    table.add("pages", ("indexed", ""), 1.0)
    table.add("bytes", (), 2.5)
    assert not table.flush()
    redis.is_away = False
    assert table.flush()
    first, *_ = redis.writes
    pages = '["pages","indexed",""]'
    # The number of a write lets Redis recognise one whose answer was lost.
    assert first[0] == 1
    assert first[2:] == [pages, "3.0"]
    assert redis.writes[:3] == [first] * 3
    assert [write[0] for write in redis.writes[3:]] == [2]
    assert redis.writes[3][2:] == [pages, "1.0", '["bytes"]', "2.5"]
    assert table.flush()
    assert len(redis.writes) == 4


def test_what_is_counted_while_redis_is_away_is_written_at_the_end(table: CountTable, redis: FailingRedis) -> None:
    table.add("pages", (), 1.0)
    assert not table.flush()
    redis.is_away = False
    table.close()
    assert redis.writes[1][2:] == ['["pages"]', "1.0"]


def test_a_label_value_is_a_status_of_http_however_many_numbers_a_server_invents() -> None:
    labels = {status_label(status) for status in range(-1, 2_000)}
    assert labels == {str(int(status)) for status in HTTPStatus} | {"other"}


def test_no_two_counters_have_one_name() -> None:
    assert len({counter.name for counter in COUNTERS}) == len(COUNTERS)
