"""`make chaos`: the whole system under faults loses nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.__main__ import ROWS, run
from tests.chaos.faults import FAULTS
from tests.chaos.rounds import Extent
from tests.chaos.schedule import MIXED, PlannedFault, RoundPlan, plan_rounds

pytestmark = pytest.mark.acceptance

#: The faults of the short form, all at once, with the seconds that each lasts.
SHORT = {"kill-worker": 0.0, "kill-beat": 0.0, "kill-rabbitmq": 1.0}

#: One seed, so that no change fails by chance; `make chaos` tries others.
SEED = 11


@pytest.mark.slow
def test_crawls_lose_nothing_while_services_and_processes_are_killed(tmp_path: Path) -> None:
    faults = tuple(PlannedFault(fault, seconds, "kills") for fault, seconds in SHORT.items())
    plan = RoundPlan(row=MIXED, seed="short kills", store="folder", moment=0.3, faults=faults)
    said: list[str] = []
    [result] = run([plan], tmp_path, extent=Extent(sites=3, pages=20), minutes=5, say=said.append)
    assert not result.violations, "\n".join([*said, result.logs])
    assert result.recovery is not None, "the faults came when every page was fetched"


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_crawls_lose_nothing_under_any_fault(tmp_path: Path) -> None:
    available = {name: fault for name, fault in FAULTS.items() if not fault.missing()}
    rows = [name for name in ROWS if name in available or name not in FAULTS]
    plans = plan_rounds(SEED, rows, available, rounds=2)
    said: list[str] = []
    results = list(run(plans, tmp_path, extent=Extent(), minutes=50, say=said.append))
    assert len(results) == len(plans)
    assert not [each for each in results if each.violations], "\n".join(said)
