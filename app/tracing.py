"""Traces by OpenTelemetry, an extra: without the setting of its collector nothing is imported or done."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

log = logging.getLogger(__name__)

_NO_HEADERS: Final[Mapping[str, Any]] = {}

#: OpenTelemetry's module that reads and writes headers, and the source of this process's spans; None without traces.
_propagate: Any = None
_provider: Any = None


def begin(process: str, collector: str) -> None:
    """Send the spans of this process to a collector, if it has a URL. A process that forks begins in its children.

    OpenTelemetry's SDK reads the URL and its other settings itself, from the variables `OTEL_…`.
    """
    global _provider, _propagate
    if not collector or _provider:
        return
    try:
        from opentelemetry import propagate, trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.instrumentation.celery import CeleryInstrumentor
        from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        log.warning("No traces are sent to %s: install perennial[traces]: %s", collector, error)
        return
    # Resource.create lets its argument win over the variables.
    named = {SERVICE_NAME: f"perennial-{process}", **OTELResourceDetector().detect().attributes}
    _provider, _propagate = TracerProvider(resource=Resource.create(named)), propagate
    _provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(_provider)
    CeleryInstrumentor().instrument()  # type: ignore[no-untyped-call]


def end() -> None:
    """Send the spans that are not sent yet, at the end of the process."""
    if _provider:
        _provider.shutdown()


def trace_headers() -> dict[str, str]:
    """Return the headers by which a message belongs to the present trace; none outside of a trace."""
    headers: dict[str, str] = {}
    if _propagate:
        _propagate.inject(headers)
    return headers


@contextmanager
def in_trace(headers: Mapping[str, Any]) -> Iterator[None]:
    """Let the block belong to the trace that these headers name, if any."""
    if not (_propagate and headers):
        yield
        return
    from opentelemetry import context

    token = context.attach(_propagate.extract(headers))
    try:
        yield
    finally:
        context.detach(token)


@contextmanager
def span(name: Callable[[], str], headers: Mapping[str, Any] = _NO_HEADERS) -> Iterator[None]:
    """Let the block be a span of the trace that these headers name, or of the present one; name it at the end."""
    if not _provider:
        yield
        return
    with in_trace(headers), _provider.get_tracer(__name__).start_as_current_span("") as current:
        try:
            yield
        finally:
            current.update_name(name())
