"""One crawl by one contestant, as it was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """`pages` are the canonical URLs stored; `wall` and `cpu` are seconds, `cpu` by group of processes.

    `apart` is CPU seconds of processes that the contestant did not bring (the web server), or spent before it began.
    `others` is the share of the machine, 0 to 1, that other programs took meanwhile.
    """

    site: str
    contestant: str
    pages: frozenset[str]
    wall: float
    cpu: Mapping[str, float]
    apart: Mapping[str, float]
    others: float
    redis_commands: Mapping[str, int] = field(default_factory=dict)

    @property
    def pages_per_second(self) -> float:
        """Pages stored per second of wall time."""
        return len(self.pages) / self.wall

    @property
    def cpu_ms_per_page(self) -> float:
        """Milliseconds of CPU time of all its processes per page stored."""
        return 1_000 * sum(self.cpu.values()) / len(self.pages)
