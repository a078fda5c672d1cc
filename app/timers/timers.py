"""Debounce timers, one a domain: each operation is one Lua script on Redis's own clock."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis

from app.state.client import PREFIX, load_script

_DEADLINES = f"{PREFIX}timers"
_TIMER = f"{PREFIX}timer:"

#: A full pack holds everything that an incremental one would, so it is never downgraded. Other callbacks rank lowest.
_STRENGTH = {"pack_full": 2, "pack_incremental": 1}

#: Timers claimed by one tick.
_BATCH = 100


@dataclass(frozen=True, slots=True)
class Callback:
    """What is posted when a timer fires: a queue's name and a plain message."""

    queue: str
    message: dict[str, Any]

    @property
    def strength(self) -> int:
        """Rank among the callbacks of one domain: the highest wins."""
        return _STRENGTH.get(str(self.message.get("type")), 0)


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer that was claimed. `timeout` is in seconds; `version` changes with every start and reset."""

    domain: str
    timeout: float
    callback: Callback
    version: str


@dataclass(frozen=True, slots=True)
class Clock:
    """What is left of a running timer, in seconds (negative when overdue), and what it will post."""

    remaining: float
    callback: Callback


class Timers:
    """The timers of one Redis."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        here = Path(__file__).parent
        self._start = load_script(redis, here / "start.lua")
        self._reset = load_script(redis, here / "reset.lua")
        self._claim = load_script(redis, here / "claim.lua")
        self._settle = load_script(redis, here / "settle.lua")

    def start(self, domain: str, *, timeout: float, callback: Callback) -> None:
        """(Re)start the clock of a domain at `timeout` seconds; the stronger of old and new callback stays."""
        self._start(keys=self._keys(domain), args=_arguments(domain, timeout, callback))

    def reset(self, domain: str, *, timeout: float, callback: Callback) -> bool:
        """Set the clock back to its stored timeout; where there is none, start it. Return whether it was started."""
        return bool(self._reset(keys=self._keys(domain), args=_arguments(domain, timeout, callback)))

    def claim_due(self, *, lease: float = 30.0) -> list[Timer]:
        """Claim what is due. A claim that is not settled within `lease` seconds is due again."""
        rows = self._claim(keys=[_DEADLINES], args=[_TIMER, lease, _BATCH])
        return [
            Timer(domain, float(timeout), Callback(queue, json.loads(message)), version)
            for domain, timeout, queue, message, version in rows
        ]

    def forget(self, timer: Timer) -> bool:
        """End a claimed timer, unless it was started or reset since; return whether it ended."""
        return bool(self._settle(keys=self._keys(timer.domain), args=[timer.domain, timer.version, ""]))

    def rearm(self, timer: Timer) -> bool:
        """Put a claimed timer off by its own timeout, unless it was touched since; return whether it was."""
        return bool(self._settle(keys=self._keys(timer.domain), args=[timer.domain, timer.version, timer.timeout]))

    def stop(self, domain: str) -> None:
        """Forget a domain's timer, whatever its state."""
        self._redis.delete(_TIMER + domain)
        self._redis.zrem(_DEADLINES, domain)

    def clock(self, domain: str) -> Clock | None:
        """Return what is left of a domain's timer, or None where none runs."""
        deadline = self._redis.zscore(_DEADLINES, domain)
        queue, message = self._redis.hmget(_TIMER + domain, ["queue", "message"])
        if deadline is None or queue is None or message is None:
            return None
        seconds, micros = self._redis.time()
        return Clock(float(deadline) - seconds - micros / 1e6, Callback(str(queue), json.loads(message)))

    @staticmethod
    def _keys(domain: str) -> list[str]:
        return [_DEADLINES, _TIMER + domain]


def _arguments(domain: str, timeout: float, callback: Callback) -> list[Any]:
    return [domain, timeout, callback.queue, json.dumps(callback.message, sort_keys=True), callback.strength]
