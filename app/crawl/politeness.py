"""One request at a time to a host: slots reserved in Redis, so that waiting occupies neither worker nor message."""

from __future__ import annotations

from pathlib import Path

from redis import Redis

from app.state.client import PREFIX, load_script


class HostGate:
    """The gates of all hosts, shared by all workers."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._reserve = load_script(redis, Path(__file__).parent / "politeness.lua")

    def wait(self, host: str, *, asker: str, delay: float) -> float:
        """Return the seconds until `asker` may send its request to `host`; 0.0 means now, and counts as sent.

        The first call reserves a slot `delay` seconds after the last one given away; later calls of the same asker
        find it again. One that comes late goes as soon as the host has been quiet for `delay` seconds.
        """
        held = max(0, int(self._redis.pttl(_hold(host)))) / 1_000
        if held or delay <= 0:
            return held
        keys = [f"{PREFIX}host:{host}", f"{PREFIX}host:{host}:slots"]
        return float(self._reserve(keys=keys, args=[asker, delay]))

    def hold(self, host: str, seconds: float) -> None:
        """Let no request to `host` through for so many seconds: the server said Retry-After."""
        if seconds > 0:
            self._redis.set(_hold(host), "1", px=int(seconds * 1_000))


def _hold(host: str) -> str:
    return f"{PREFIX}host:{host}:hold"
