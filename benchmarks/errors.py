"""The error of the benchmarks."""

from __future__ import annotations

from app.broker.errors import ApplicationError


class BenchmarkError(ApplicationError, reason="benchmark"):
    """Raised when a benchmark cannot run, or when its contestants did different work."""
