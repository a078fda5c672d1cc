"""What the task `watch` finds new: dead sets that grew, sites that became unreachable, checks that fail."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from redis import Redis

from app.crawl.frontier.values import FailingCrawl
from app.notifications.events import DeadSetGrew, PublicEvent, SiteUnreachable, doctor_error
from app.notifications.quiet import is_within
from app.redis_state.client import PREFIX

#: The hash of what was found before.
_NOTED: Final = f"{PREFIX}watch:noted"


@dataclass(frozen=True, slots=True)
class ReportedDepth:
    """The letters of a dead set that were last reported, and when, in epoch seconds."""

    letters: int = 0
    at: float = 0.0

    def is_growth(self, letters: int, now: float) -> bool:
        """Return whether `letters` are reported: the first ones, twice as many, or more after a quiet period."""
        is_much = not self.letters or letters >= 2 * self.letters
        return letters > self.letters and (is_much or not is_within(self.at, now))


class NewFindings:
    """Compares what is found with what was found before, as Redis has it. Without Redis, everything is new."""

    def __init__(self, redis: Redis, *, now: float, occasion: str) -> None:
        """`occasion` is the same for a run that is repeated."""
        self._redis = redis
        self._now = now
        self._occasion = occasion
        self._former: dict[str, str] = {str(name): str(value) for name, value in redis.hgetall(_NOTED).items()}
        self._next: dict[str, str] = {}

    def dead_sets(self, depths: Mapping[str, int | None]) -> Iterator[PublicEvent]:
        """Yield the events of dead sets by their depth; a depth of None is unknown, since a program reads the set."""
        for name, letters in depths.items():
            field = f"dead:{name}"
            former = ReportedDepth(**json.loads(self._former[field])) if field in self._former else ReportedDepth()
            if letters is None:
                found = former
            elif former.is_growth(letters, self._now):
                found = ReportedDepth(letters, self._now)
                yield DeadSetGrew.of(dead_set=name, letters=letters, before=former.letters, occasion=self._occasion)
            else:
                found = ReportedDepth(min(former.letters, letters), former.at)
            self._next[field] = json.dumps({"letters": found.letters, "at": found.at})

    def sites(self, failing: Sequence[FailingCrawl]) -> Iterator[PublicEvent]:
        """Yield the events of sites that are unreachable and were not before."""
        for each in failing:
            if self._is_new(f"site:{each.domain}"):
                yield SiteUnreachable.of(
                    site=each.domain,
                    crawl_id=each.crawl_id,
                    failing=each.failing,
                    error=each.error,
                    occasion=self._occasion,
                )

    def checks(self, problems: Mapping[str, Sequence[str]]) -> Iterator[PublicEvent]:
        """Yield the events of checks of the doctor that find problems and did not before."""
        for name, texts in problems.items():
            if texts and self._is_new(f"doctor:{name}"):
                yield doctor_error(name, texts, occasion=self._occasion)

    def note(self) -> None:
        """Note what was found, when its events are published."""
        with self._redis.pipeline() as pipe:
            pipe.delete(_NOTED)
            if self._next:
                pipe.hset(_NOTED, mapping=dict[Any, Any](self._next))
            pipe.execute()

    def _is_new(self, field: str) -> bool:
        self._next[field] = "1"
        return field not in self._former
