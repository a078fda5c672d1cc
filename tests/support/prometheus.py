"""A real Prometheus that scrapes one web process and evaluates alert rules."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from tests.support.programs import program
from tests.support.waiting import eventually
from tests.support.web import free_port


@dataclass(frozen=True, slots=True)
class Prometheus:
    """The API of a running Prometheus, at `url`."""

    url: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series that an expression has now."""
        return list(self._read("query", query=expression)["result"])

    def alerts(self) -> set[str]:
        """Return the alerts that fire, as PromQL selects them, without their severity."""
        firing = [each for each in self._read("alerts")["alerts"] if each["state"] == "firing"]
        assert not [each for each in firing if "<no value>" in str(each["annotations"])]
        return {_selector(**each["labels"]) for each in firing}

    def _read(self, path: str, **parameters: str) -> dict[str, Any]:
        answer = requests.get(f"{self.url}/api/v1/{path}", parameters, timeout=10)
        answer.raise_for_status()
        return dict(answer.json()["data"])


def _selector(alertname: str, severity: str, **labels: str) -> str:
    del severity
    given = ", ".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
    return f"{alertname}{{{given}}}" if given else alertname


def _is_ready(address: str) -> bool:
    try:
        return requests.get(f"http://{address}/-/ready", timeout=10).ok
    except requests.ConnectionError:
        return False


@contextmanager
def prometheus(folder: Path, target: str, rules: Sequence[dict[str, Any]]) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes `target`, a host with its port, as the instance `web` for the block."""
    # A scrape takes two seconds while a service hangs.
    times = {"scrape_interval": "4s", "scrape_timeout": "4s", "evaluation_interval": "1s"}
    web = {"job_name": "perennial", "static_configs": [{"targets": [target], "labels": {"instance": "web"}}]}
    files = {
        "prometheus.yml": {"global": times, "rule_files": ["rules.yml"], "scrape_configs": [web]},
        "rules.yml": {"groups": [{"name": "perennial", "rules": rules}]},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    address = f"127.0.0.1:{free_port()}"
    options = {
        "config.file": folder / "prometheus.yml",
        "storage.tsdb.path": folder / "series",
        "web.listen-address": address,
    }
    command = [program("prometheus", "prometheus"), *(f"--{name}={value}" for name, value in options.items())]
    with (folder / "prometheus.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            eventually(lambda: _is_ready(address), "Prometheus is ready")
            yield Prometheus(f"http://{address}")
        finally:
            process.terminate()
