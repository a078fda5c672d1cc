"""SENTRY_DSN: a dead letter is one event of Sentry with its page and crawl, and a retry sends nothing."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from urllib3 import HTTPResponse

from app.topology.queues import DEAD_SET
from config.settings import Settings
from tests.servers.site import Site, document, failure, reply
from tests.support.system import running_system
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance


@contextmanager
def sentry() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the DSN of a server that takes Sentry's envelopes, and the events that came."""
    events: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            encoded = io.BytesIO(self.rfile.read(int(self.headers["Content-Length"])))
            body = HTTPResponse(encoded, {"Content-Encoding": self.headers["Content-Encoding"]}).data
            # Headers and items of the envelope, each in a line. Of all of them an event alone has its platform.
            events.extend(each for each in map(json.loads, filter(None, body.splitlines())) if "platform" in each)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://key4711@127.0.0.1:{server.server_address[1]}/1", events
        finally:
            server.shutdown()
            thread.join()


def test_a_dead_letter_is_one_event_with_its_page_and_crawl_and_without_a_secret(
    environment: dict[str, str], settings: Settings, tmp_path: Path
) -> None:
    start = reply(document("Start", "all about amber", links=["/broken"]))
    with sentry() as (dsn, events), Site({"/": start, "/broken": failure(500)}) as site:
        chosen = {**environment, "SENTRY_DSN": dsn, "RETRY_TIMEOUT_MS": "100", "RETRY_MAX": "2", "TIMER_TIMEOUT": "1"}
        with running_system(chosen, settings, tmp_path) as system:
            body = json.dumps({"type": "index+crawl", "url": site.at("/")})
            system.broker.post(body.encode(), message_id="crawl-4711")
            eventually(lambda: system.broker.depth(DEAD_SET) == 1, "the page is dead-lettered", seconds=60)
            system.packed(site.domain)
        [event] = eventually(lambda: events, "the event arrives")
    # All processes have ended, and sent what they had.
    [error] = event["exception"]["values"][-1:]
    assert (error["type"], site.at("/broken") in error["value"]) == ("ServerError", True)
    expected = {"task": "site.page", "domain": site.domain, "crawl_id": "crawl-4711", "process": "worker"}
    assert event["tags"] | expected == event["tags"]
    assert (event["tags"]["attempt"], event["extra"]["url"]) == (3, site.at("/broken"))
    text = json.dumps(event)
    assert not [each for each in ("key4711", urlsplit(settings.broker).password) if str(each) in text]
