"""One sender of the enqueue benchmark, in its own process: it sends messages on request and measures each call."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from celery import Celery
from kombu import Connection, Queue

Send = Callable[[str], object]


def perennial(_queue: str, confirm: bool) -> Send:
    """Return Perennial's `apply_async()`, with `confirm` as `delay()` has it or without."""
    # Imported by this sender only, because it changes py-amqp.
    from tasks.site import index

    return lambda url: index.apply_async((url,), confirm=confirm)


def celery(queue: str, confirm: bool) -> Send:
    """Return the `delay()` of a plain Celery application."""
    app = Celery("plain", broker=_broker())
    app.conf.task_queues = [Queue(queue, routing_key=queue, queue_arguments=_arguments())]
    app.conf.task_default_queue = queue
    app.conf.task_ignore_result = True
    app.conf.broker_transport_options = {"confirm_publish": confirm}
    task = app.task(name="site.index")(_index)
    return lambda url: task.delay(url=url, domain="site.gov")


def kombu(queue: str, confirm: bool) -> Send:
    """Return a bare publish on one channel: a message in Celery's format with two headers."""
    producer = Connection(_broker(), transport_options={"confirm_publish": confirm}).Producer(serializer="json")
    headers = {"task": "site.index", "id": queue}

    def publish(url: str) -> None:
        body = [[], {"url": url, "domain": "site.gov"}, {}]
        producer.publish(body, routing_key=queue, headers=headers)

    return publish


SENDERS: dict[str, Callable[[str, bool], Send]] = {"Perennial": perennial, "Celery": celery, "kombu": kombu}


def _index(url: str, domain: str) -> None:
    """Do nothing: no worker runs this task."""


def _broker() -> str:
    return os.environ["BROKER_URL"]


def _arguments() -> dict[str, Any]:
    arguments: dict[str, Any] = json.loads(os.environ["QUEUE_ARGUMENTS"])
    return arguments


def turn(send: Send, calls: int) -> list[float]:
    """Return the seconds of each of `calls` calls."""
    taken = []
    for number in range(calls):
        url = f"https://site.gov/folder/page-{number}.html"
        began = time.perf_counter()
        send(url)
        taken.append(time.perf_counter() - began)
    return taken


def main(name: str, queue: str, confirm: bool) -> None:
    """Read a number of calls from each line, and reply with a JSON array of their seconds."""
    send = SENDERS[name](queue, confirm)
    for line in sys.stdin:
        print(json.dumps(turn(send, int(line))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3] == "confirm")
