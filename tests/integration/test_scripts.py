"""Lua scripts that threads call together on a real Redis."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from redis import ResponseError

from app.redis_state.client import get_redis, load_script

pytestmark = pytest.mark.integration


def test_each_thread_gets_its_own_reply_or_error_also_after_redis_lost_the_scripts(
    redis_url: str, tmp_path: Path
) -> None:
    redis, echo, refuse = get_redis(redis_url), tmp_path / "echo.lua", tmp_path / "refuse.lua"
    echo.write_text("return {KEYS[1], ARGV[1]}")
    refuse.write_text("return redis.error_reply('no ' .. ARGV[1])")
    scripts = load_script(redis, echo), load_script(redis, refuse)

    def call(number: int) -> object:
        if number % 3 == 0:
            redis.script_flush()
        try:
            return scripts[number % 7 == 0](keys=[f"key-{number}"], args=[number])
        except ResponseError as error:
            return str(error)

    with ThreadPoolExecutor(8) as threads:
        replies = list(threads.map(call, range(400)))
    assert replies == [f"no {n}" if n % 7 == 0 else [f"key-{n}", str(n)] for n in range(400)]
