"""Debounce timers, one a domain: each operation is one Lua script on Redis's own clock."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis, RedisError

from app.broker.errors import InvalidMessage
from app.redis_state.client import PREFIX, get_quick_redis, load_script
from config.routes import PACK, POLICY_OF_QUEUE, ROUTE_BY_TYPE, callback_queue

#: Seconds. A timer of more than a week is a mistake in units.
MAX_TIMEOUT = 7 * 86_400

#: Seconds without a tick after which timers count as stopped. Beat sends one each second.
MAX_TICK_PAUSE = 60

_DEADLINES = f"{PREFIX}timers"
_TIMER = f"{PREFIX}timer:"
#: The last claim: its domains, and its time. A later one that is earlier shows that the clock was set back.
_CLAIMED = f"{PREFIX}timers:claimed"
#: Counts starts and resets of all timers: a timer that was deleted and started again has another version.
_VERSION = f"{PREFIX}timers:version"
#: Set by each tick that has run; it expires after MAX_TICK_PAUSE.
_TICKED = f"{PREFIX}ticked"

#: A full pack contains everything that an incremental one would, so it wins. Other callbacks have strength 0.
_STRENGTH = {"pack_full": 2, "pack_incremental": 1}

#: Timers of one claim, which are fired together.
_BATCH = 100

#: The reference document's names of the two packs, besides the message types.
_SYNONYMS = {
    "full_pack_callback": "pack_full",
    "full_end": "pack_full",
    "pack_inc_callback": "pack_incremental",
    "incremental_end": "pack_incremental",
}


@dataclass(frozen=True, slots=True)
class Callback:
    """The message that a timer publishes, and the name of the queue that it goes to."""

    queue: str
    message: dict[str, Any]

    @property
    def strength(self) -> int:
        """Rank among the callbacks of one domain: the highest wins."""
        return _STRENGTH.get(str(self.message.get("type")), 0)


@dataclass(frozen=True, slots=True)
class Timer:
    """A claimed timer. `timeout` is in seconds; `version` changes with every start and reset."""

    domain: str
    timeout: float
    callback: Callback
    version: str


@dataclass(frozen=True, slots=True)
class RunningTimer:
    """Seconds until a timer is due (negative when it is overdue), and its callback."""

    remaining: float
    callback: Callback


class Timers:
    """The timers of one Redis."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        folder = Path(__file__).parent
        self._start = load_script(redis, folder / "start.lua")
        self._reset = load_script(redis, folder / "reset.lua")
        self._claim = load_script(redis, folder / "claim.lua")
        self._complete = load_script(redis, folder / "complete.lua")
        self._stop = load_script(redis, folder / "stop.lua")

    def start(self, domain: str, *, timeout: float, callback: Callback) -> None:
        """Start a domain's timer, or start it again, at `timeout` seconds; the stronger callback stays."""
        self._start(keys=_keys(domain), args=_arguments(domain, timeout, callback))

    def reset(self, domain: str, *, timeout: float, callback: Callback) -> None:
        """Set a timer back to its stored timeout, or start a missing one."""
        self._reset(keys=_keys(domain), args=_arguments(domain, timeout, callback))

    def claim_due(self, *, lease: float = 30.0) -> list[Timer]:
        """Claim the first timers that are due. One that is not completed in `lease` seconds is due again."""
        rows = self._claim(keys=[_DEADLINES, _CLAIMED], args=[_TIMER, lease, _BATCH, uuid.uuid4().hex])
        return [
            Timer(domain, float(timeout), Callback(queue, json.loads(message)), version)
            for domain, timeout, queue, message, version in rows
        ]

    def unchanged(self, timers: Sequence[Timer]) -> list[Timer]:
        """Return the claimed timers that were neither started nor reset since their claim."""
        pipe = self._redis.pipeline(transaction=False)
        for timer in timers:
            pipe.hget(_TIMER + timer.domain, "version")
        return [timer for timer, version in zip(timers, pipe.execute(), strict=True) if timer.version == version]

    def remove(self, timers: Sequence[Timer]) -> list[Timer]:
        """Delete claimed timers, but for those that were started or reset since; return those that were deleted."""
        return self._completed([(timer, "") for timer in timers])

    def rearm(self, timers: Sequence[Timer]) -> list[Timer]:
        """Put claimed timers off, each by its own timeout, as `remove` deletes them; return those that were."""
        return self._completed([(timer, timer.timeout) for timer in timers])

    def _completed(self, claims: Sequence[tuple[Timer, float | str]]) -> list[Timer]:
        keys = [_TIMER + timer.domain for timer, _ in claims]
        arguments = [argument for timer, seconds in claims for argument in (timer.domain, timer.version, seconds)]
        done = self._complete(keys=[_DEADLINES, *keys], args=arguments) if claims else []
        return [timer for (timer, _), is_done in zip(claims, done, strict=True) if is_done]

    def stop(self, domain: str, *, callback: Callback) -> None:
        """Delete a domain's timer, claimed or not, if it has this callback."""
        self._stop(keys=_keys(domain), args=[domain, callback.queue, json.dumps(callback.message, sort_keys=True)])

    def delete(self, domain: str) -> None:
        """Delete a domain's timer, claimed or not, whatever its callback."""
        pipe = self._redis.pipeline()
        pipe.zrem(_DEADLINES, domain)
        pipe.delete(_TIMER + domain)
        pipe.execute()

    def running(self, domain: str) -> RunningTimer | None:
        """Return a domain's timer, or None without one."""
        deadline = self._redis.zscore(_DEADLINES, domain)
        queue, message = self._redis.hmget(_TIMER + domain, ["queue", "message"])
        if deadline is None or queue is None or message is None:
            return None
        seconds, micros = self._redis.time()
        return RunningTimer(float(deadline) - seconds - micros / 1e6, Callback(str(queue), json.loads(message)))

    def first(self, number: int) -> list[tuple[str, RunningTimer]]:
        """Return the domains and timers that are due first, at most `number`."""
        due: Any = self._redis.zrange(_DEADLINES, 0, number - 1, withscores=True)
        pipe = self._redis.pipeline(transaction=False)
        for domain, _ in due:
            pipe.hmget(_TIMER + str(domain), ["queue", "message"])
        pipe.time()
        *fields, (seconds, micros) = pipe.execute()
        now = seconds + micros / 1e6
        return [
            (str(domain), RunningTimer(float(deadline) - now, Callback(str(queue), json.loads(message))))
            for (domain, deadline), (queue, message) in zip(due, fields, strict=True)
            if queue is not None and message is not None
        ]

    def count(self) -> int:
        """Return the number of timers."""
        return int(self._redis.zcard(_DEADLINES))

    def make_due(self, domain: str) -> bool:
        """Let a domain's timer be due now; return whether there is one. Its timeout and its callback stay."""
        seconds, micros = self._redis.time()
        if self._redis.zscore(_DEADLINES, domain) is None:
            return False
        # `xx`: the timer may just have been removed.
        self._redis.zadd(_DEADLINES, {domain: seconds + micros / 1e6}, xx=True)
        return True


def _keys(domain: str) -> list[str]:
    return [_DEADLINES, _TIMER + domain, _VERSION]


def _arguments(domain: str, timeout: float, callback: Callback) -> list[Any]:
    return [domain, timeout, callback.queue, json.dumps(callback.message, sort_keys=True), callback.strength]


def full_pack_callback(domain: str, crawl_id: str = "") -> Callback:
    """Return the callback that rebuilds a domain's pack, from one crawl if `crawl_id` is given."""
    crawl = {"crawl_id": crawl_id} if crawl_id else {}
    return Callback(PACK, {"type": "pack_full", "domain": domain, **crawl})


def incremental_pack_callback(domain: str) -> Callback:
    """Return the callback that updates a domain's pack."""
    return Callback(PACK, {"type": "pack_incremental", "domain": domain})


def timeout_of(message: Mapping[str, Any], *, default: float) -> float:
    """Return the `timeout` of a message in seconds; raises InvalidMessage for an invalid one."""
    value = message.get("timeout")
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidMessage(f"timeout {value!r}: expected a number of seconds")
    if not 0 < value <= MAX_TIMEOUT:
        raise InvalidMessage(f"timeout {value!r}: expected more than 0 and at most {MAX_TIMEOUT} seconds")
    return float(value)


def callback_of(message: Mapping[str, Any], domain: str) -> Callback | None:
    """Return the callback of `callback_msg` and `callback_queue`, None without; raises InvalidMessage."""
    given = message.get("callback_msg")
    if given is None:
        return None
    fields = {"type": given} if isinstance(given, str) else given
    if not isinstance(fields, dict):
        raise InvalidMessage(f"callback_msg {given!r}: expected a JSON object or the name of a message type")
    kind = _SYNONYMS.get(str(fields.get("type")), fields.get("type"))
    if not isinstance(kind, str) or kind not in ROUTE_BY_TYPE:
        raise InvalidMessage(f"callback_msg of type {kind!r}: expected one of {', '.join(ROUTE_BY_TYPE)}")
    queue, name = ROUTE_BY_TYPE[kind].queue, message.get("callback_queue")
    if name is not None:
        found = callback_queue(name) if isinstance(name, str) else None
        if found is None:
            raise InvalidMessage(f"callback_queue {name!r}: no queue has this name")
        queue = found
    if POLICY_OF_QUEUE[queue] == "drop":
        raise InvalidMessage(f"callback_queue {queue!r}: it drops what waits in it, such as a callback")
    return Callback(queue, {"domain": domain, **fields, "type": kind})


def seconds_since_tick(redis: Redis) -> float | None:
    """Return the age of the last tick as Redis measures it, None if none ran for MAX_TICK_PAUSE seconds."""
    left_ms: int = redis.pttl(_TICKED)
    return MAX_TICK_PAUSE - left_ms / 1_000 if left_ms > 0 else None


class TickWatch:
    """The time since the last tick, as one process sees it. Only Redis measures it: clocks of hosts do not matter."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        # A process that has just started, or a Redis that has just lost its keys, proves nothing yet.
        self._seen = time.monotonic()

    def note(self) -> None:
        """Note that a tick has run."""
        self._redis.set(_TICKED, 1, ex=MAX_TICK_PAUSE)

    def is_overdue(self) -> bool:
        """Return whether no tick ran for MAX_TICK_PAUSE seconds, all of them within the life of this object."""
        age = seconds_since_tick(self._redis)
        now = time.monotonic()
        if age is not None:
            self._seen = max(self._seen, now - age)
        return now - self._seen >= MAX_TICK_PAUSE


def packing_state(redis_url: str) -> Callable[[], str]:
    """Return a function that says why no site is packed, or returns an empty text.

    A Redis that does not answer proves nothing about ticks.
    """
    watch = TickWatch(get_quick_redis(redis_url))

    def why_not() -> str:
        try:
            return f"no tick ran for {MAX_TICK_PAUSE} s, so no site is packed" if watch.is_overdue() else ""
        except RedisError:
            return ""

    return why_not
