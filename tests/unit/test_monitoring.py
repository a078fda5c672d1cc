"""The alert rules and the dashboard: true to the metrics and the guide, and each rule fires for its cause alone."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from config.settings import ROOT
from tests.support.documents import metrics, read, table
from tests.support.programs import program

pytestmark = pytest.mark.unit

RULES = ROOT / "docs/monitoring/alerts.yml"
DASHBOARD = ROOT / "docs/monitoring/dashboard.json"

#: The metrics of a system that is well, as Prometheus writes series.
WELL = {
    "perennial_routes_known": 1,
    "perennial_routes_ready": 1,
    "perennial_tick_overdue": 0,
    'perennial_readable{part="queues"}': 1,
    'perennial_queue_messages{queue="site.dead", kind="dead"}': 0,
    'perennial_queue_messages{queue="site.page", kind="work"}': 20,
    'perennial_queue_consumers{queue="site.page", kind="work"}': 2,
    'perennial_queue_oldest_seconds{queue="site.page", kind="work"}': 30,
    'perennial_queue_messages{queue="site.index.delay.10000", kind="delay"}': 5_000,
    "perennial_queues_missing": 0,
    'perennial_packs{state="missing"}': 0,
    "perennial_copies_missing": 0,
    'perennial_index_age_seconds{domain="site.example"}': 86_400,
    'perennial_process_running{process="worker"}': 1,
    'perennial_breaker_left_seconds{service="archive of cover-art-archive"}': 0,
    'perennial_queue_pause_left_seconds{queue="site.page"}': 0,
    "perennial_event_reader_silent_seconds": 3,
    "perennial_events_known": 1,
    'perennial_oldest_event_seconds{type="release"}': 60,
    'perennial_events_failed{type="release", reason="timeout"}': 0,
}

NO_CONSUMER: dict[str, int | str | None] = {'perennial_queue_consumers{queue="site.page", kind="work"}': 0}
STORE_AWAY: dict[str, int | str | None] = {'perennial_breaker_left_seconds{service="store"}': 30}

#: What is wrong, and the only alerts that fire then. None: there is no such series. A text: a value each minute.
WRONG: list[tuple[dict[str, int | str | None], str]] = [
    ({"perennial_routes_known": 0}, "PerennialNotReady"),
    ({"perennial_routes_known": None}, "PerennialNotReady"),
    ({"perennial_routes_ready": 0}, "PerennialNotReady"),
    ({"perennial_tick_overdue": 1}, "PerennialNotReady"),
    ({'perennial_readable{part="queues"}': 0}, "PerennialPartUnreadable"),
    ({'perennial_queue_messages{queue="site.dead", kind="dead"}': 1}, "PerennialDeadLetters"),
    (NO_CONSUMER, "PerennialQueueWithoutConsumer"),
    ({'perennial_queue_messages{queue="site.page", kind="work"}': 5_000}, "PerennialQueueNotDrained"),
    ({'perennial_queue_oldest_seconds{queue="site.page", kind="work"}': 4_000}, "PerennialOldMessage"),
    ({"perennial_queues_missing": 1}, "PerennialQueueMissing"),
    ({'perennial_packs{state="missing"}': 1}, "PerennialPackMissing"),
    ({"perennial_copies_missing": 1}, "PerennialCopiesMissing"),
    ({'perennial_index_age_seconds{domain="site.example"}': 700_000}, "PerennialPackTooOld"),
    ({'perennial_process_running{process="worker"}': 0}, "PerennialProcessDown"),
    # A service that is away is tried again after each pause.
    (
        {'perennial_breaker_left_seconds{service="archive of cover-art-archive"}': "30 0 " * 38},
        "PerennialBreakerOpen",
    ),
    # Workers do not consume a queue while the store that it needs is away. Another queue without a worker stays found.
    (
        NO_CONSUMER | STORE_AWAY | {'perennial_queue_pause_left_seconds{queue="site.page"}': 30},
        "PerennialBreakerOpen",
    ),
    (
        NO_CONSUMER | STORE_AWAY | {'perennial_queue_pause_left_seconds{queue="site.index"}': 30},
        "PerennialQueueWithoutConsumer PerennialBreakerOpen",
    ),
    ({"perennial_event_reader_silent_seconds": 80}, "PerennialEventReaderSilent"),
    ({"perennial_event_reader_silent_seconds": None}, "PerennialEventReaderSilent"),
    ({"perennial_events_known": 0}, "PerennialEventReaderSilent"),
    ({'perennial_oldest_event_seconds{type="release"}': 4_000}, "PerennialEventsWait"),
    ({'perennial_events_failed{type="release", reason="timeout"}': 1}, "PerennialEventsFailed"),
]


def rules() -> list[dict[str, Any]]:
    """Return the alert rules."""
    return [rule for group in YAML(typ="safe").load(RULES.read_text())["groups"] for rule in group["rules"]]


def test_every_metric_of_the_rules_and_of_the_dashboard_exists() -> None:
    # tests/unit/test_documents.py compares the table with the code.
    types = {row[0].strip("`"): kind for kind, rows in metrics().items() for row in rows}
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "gauge": ("",)}
    exported = {name + suffix for name, kind in types.items() for suffix in suffixes[kind]}
    panels = json.loads(DASHBOARD.read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    used = set(re.findall(r"perennial_\w+", " ".join([*expressions, *(rule["expr"] for rule in rules())])))
    assert len(used) > 20
    assert used <= exported


def test_the_guide_explains_every_alert() -> None:
    rows = table(read("docs/guides/monitor.md"), "## What to alarm on")
    assert [row[0].strip("`") for row in rows] == [rule["alert"] for rule in rules()]
    assert {rule["alert"] for rule in rules()} == {alert for _, alerts in WRONG for alert in alerts.split()}


def test_each_alert_fires_for_its_cause_alone(tmp_path: Path) -> None:
    cases = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": list(_cases())}
    file = tmp_path / "alerts.test.yml"
    file.write_text(json.dumps(cases))
    done = subprocess.run(
        [program("promtool", "prometheus"), "test", "rules", file], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _cases() -> Iterator[dict[str, Any]]:
    for changes, alerts in [({}, ""), *WRONG]:
        series: dict[str, int | str | None] = {**WELL, **changes}
        yield {
            "name": f"{changes} {alerts}",
            "interval": "1m",
            "input_series": [
                {"series": name, "values": value if isinstance(value, str) else f"{value}x75"}
                for name, value in series.items()
                if value is not None
            ],
            "promql_expr_test": [
                {
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                    "eval_time": "75m",
                    "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in alerts.split()],
                }
            ],
        }
