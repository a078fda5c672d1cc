"""`python -m app.cluster.searcher`: one searcher, until SIGTERM or SIGINT; start one per replica."""

from __future__ import annotations

import logging
import signal
import sys
import threading

from app import error_reports, tracing
from app.broker.errors import ApplicationError, error_with_class
from app.cluster.searcher.process import run
from config.logs import configure
from config.settings import get_settings

log = logging.getLogger(__name__)


def main() -> int:
    """Return 0 after the searcher drained, and 1 if it could not start or had to end."""
    settings = get_settings()
    configure()
    tracing.begin("searcher", settings.otel_exporter_otlp_endpoint)
    error_reports.begin("searcher", settings)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        run(settings, stopping=stopping.is_set)
    except ApplicationError as error:
        log.critical("Searcher ended: %s", error_with_class(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
