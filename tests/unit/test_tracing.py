"""Traces are an extra: without it, or without a collector, nothing of it is imported, and messages are as before."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from app import tracing
from app.messages.envelopes import site_message

pytestmark = pytest.mark.unit

#: Prints what a worker, a web process and a searcher import of the extra. redis-py imports the SDK where it finds it.
IMPORTS = """
import sys, app.celery, app.web.__main__, app.cluster.searcher.__main__
from app import tracing
tracing.begin("worker", "")
print([name for name in sys.modules if name.startswith(("opentelemetry.instrumentation", "opentelemetry.exporter"))])
"""


def test_without_a_collector_no_process_imports_the_extra() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_without_the_extra_a_process_says_so_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with caplog.at_level(logging.WARNING):
        tracing.begin("worker", "http://127.0.0.1:4318")
    assert "install perennial[traces]" in caplog.text
    with tracing.span(lambda: "never"), tracing.in_trace({"traceparent": "00-a-b-01"}):
        assert dict(site_message("index", url="https://site.example/").headers) == {}
    tracing.end()
