"""A searcher of the orchestrator's model: what it has, and the messages that it would send."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from app.cluster.protocol import Load, OrderOutcome, PackVersion, SearcherReport, Unload


@dataclass
class FakeSearcher:
    """A searcher that executes its orders as far as it can."""

    name: str
    capacity: int
    held: dict[str, PackVersion] = field(default_factory=dict)
    jobs: list[Load | Unload] = field(default_factory=list)
    inbox: list[tuple[float, Load | Unload]] = field(default_factory=list)
    seq: int = 0
    changes: int = 0
    beat_at: float = 0.0
    lost: int = 0
    leaving: bool = False

    @property
    def free(self) -> int:
        return max(0, self.capacity - sum(each.size_mb for each in self.held.values()))

    def heartbeat(self) -> SearcherReport:
        self.seq += 1
        return SearcherReport(
            searcher_id=self.name,
            seq=self.seq,
            changes=self.changes,
            free_space=self.free,
            capacity=self.capacity,
            leaving=self.leaving,
            loading=tuple(job.sha256 for job in self.jobs if isinstance(job, Load)),
        )

    def registration(self) -> SearcherReport:
        return replace(self.heartbeat(), pack_versions=tuple(self.held.values()))

    def outcome(self, job: Load | Unload, reason: str) -> OrderOutcome:
        report, held = replace(self.heartbeat(), loading=None), self.held.get(job.domain)
        return OrderOutcome(report=report, domain=job.domain, sha256=job.sha256, reason=reason, held=held)

    def hold(self, domain: str, version: PackVersion | None) -> None:
        self.changes += 1
        self.held.pop(domain, None)
        if version is not None:
            self.held[domain] = version
