"""Which errors of Redis are outages."""

from __future__ import annotations

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

from app.state.outage import is_outage

pytestmark = pytest.mark.unit


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
