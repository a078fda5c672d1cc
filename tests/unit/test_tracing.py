"""Traces are an extra: without it a process says so, and messages are as before."""

from __future__ import annotations

import logging
import sys

import pytest

from app import tracing
from app.messages.envelopes import site_message

pytestmark = pytest.mark.unit


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
