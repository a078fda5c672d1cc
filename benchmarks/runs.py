"""One measured crawl of one contestant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlRun:
    """`pages` are the canonical keys of stored pages; `wall` and `cpu` are seconds, `cpu` by group of processes.

    `apart` is CPU time that does not count: of the web server, and before the first request. `others` is the share of
    the machine, 0 to 1, that other programs took.
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
        """Stored pages per second of wall time."""
        return len(self.pages) / self.wall

    @property
    def cpu_ms_per_page(self) -> float:
        """Milliseconds of CPU time of all processes per stored page."""
        return 1_000 * sum(self.cpu.values()) / len(self.pages)
