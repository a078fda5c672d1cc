"""A circuit breaker in Redis: all workers stop using a service that is away, and one job of all tries it again."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from redis import Redis

from app.broker.errors import Postpone
from app.redis_state.client import PREFIX, load_script

#: Seconds after which another job may try the service: the first one's process was killed, or it takes very long.
TRIAL_LEASE = 60.0

#: Seconds that a job waits at most before it asks again whether the trial has ended.
_TRIAL_WAIT = 1.0

#: Characters of the reason that are kept.
_MAX_REASON = 300

#: Deletes the lease of one trial only.
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"


class CircuitBreaker:
    """Stops work of all workers while a service is unavailable, so that no retries are spent on it.

    It opens when requests about `threshold` different items failed with no success between them. It stays open for
    `first_pause` seconds, doubled with each failed trial up to `longest_pause`. Then one job is the trial: its success
    closes the circuit breaker. Failures are forgotten after `memory` seconds. All times are those of Redis's clock.
    """

    def __init__(
        self,
        redis: Redis,
        name: str,
        service: str,
        *,
        first_pause: float,
        longest_pause: float,
        memory: float,
        threshold: int = 1,
    ) -> None:
        """`name` is part of its keys, `service` names the service to people."""
        self.name = name
        self.service = service
        self.first_pause = first_pause
        self.redis = redis
        self._limits = [threshold, _ms(first_pause), _ms(longest_pause), _ms(memory)]
        self.keys = [f"{PREFIX}outage:{name}:{part}" for part in ("until", "count", "items", "trial", "others")]
        #: Whether Redis may have failures to forget: it had some at the last admission, or one was counted since.
        self.may_remember = True
        folder = Path(__file__).parent
        self._fail = load_script(redis, folder / "circuit_breaker_fail.lua")
        self._succeed = load_script(redis, folder / "circuit_breaker_succeed.lua")

    def seconds_open(self) -> float:
        """Return the seconds to consume no message, since it is open or a trial runs; else 0."""
        until, _, _, trial, _ = self.keys
        with self.redis.pipeline(transaction=False) as pipeline:
            pipeline.pttl(until)
            pipeline.pttl(trial)
            return max(0.0, *map(float, pipeline.execute())) / 1_000

    def reason(self) -> str | None:
        """Return the error that opened it, or None while it is not open."""
        reason = self.redis.get(self.keys[0])
        return None if reason is None else str(reason)

    def admit(self, *items: str) -> AbstractContextManager[None]:
        """Admit a job that is about these items to the block, as `admit_to_all` does."""
        return admit_to_all([self], *items)

    def fail(self, item: str = "", *, reason: str = "", retry_after: float | None = None) -> tuple[float, bool]:
        """Count a failed request about an item. Return the seconds that it is open, and whether this opened it.

        It stays open for `retry_after` seconds at least. While it is open, further failures do not count.
        """
        self.may_remember = True
        args = [item, *self._limits, _ms(retry_after) if retry_after else 0, reason[:_MAX_REASON]]
        open_ms, opened = self._fail(keys=self.keys, args=args)
        return open_ms / 1_000, bool(opened)

    def succeed(self) -> None:
        """Forget the failures: the service answered. A pause that has begun goes on.

        Does nothing if Redis remembered no failure at the last admission, and none was counted here since.
        """
        if self.may_remember:
            self._succeed(keys=self.keys)


@contextmanager
def admit_to_all(breakers: Sequence[CircuitBreaker], *items: str) -> Iterator[None]:
    """Admit a job that is about these items to the block; raises Postpone while one circuit breaker is open.

    After a pause one job of all is admitted, the trial; the others are postponed until it has succeeded or failed. The
    circuit breakers are of one Redis, which is called once.
    """
    token, redis = str(uuid.uuid4()), breakers[0].redis
    script = load_script(redis, Path(__file__).with_name("circuit_breaker_admit.lua"))
    keys = [key for breaker in breakers for key in breaker.keys]
    admissions = script(keys=keys, args=[token, _ms(TRIAL_LEASE), _ms(_TRIAL_WAIT), *items])
    on_trial: list[CircuitBreaker] = []
    try:
        for breaker, (wait_ms, is_trial, remembers) in zip(breakers, admissions, strict=False):
            if is_trial:
                on_trial.append(breaker)
            if wait_ms:
                raise Postpone(
                    wait_ms / 1_000, f"the circuit breaker of the {breaker.service} is open", code="breaker-open"
                )
            breaker.may_remember = bool(remembers)
        yield
    finally:
        for breaker in on_trial:
            redis.eval(_RELEASE, 1, breaker.keys[3], token)


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1_000))
