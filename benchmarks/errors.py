"""What a benchmark raises."""

from __future__ import annotations

from app.broker.errors import ApplicationError


class BenchmarkError(ApplicationError):
    """Raised when a benchmark cannot be run, or when its contestants did not do the same work; says which and why."""

    permanent = True
    reason = "benchmark"
