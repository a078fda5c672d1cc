"""One sender of a task's message, in a process of its own: it sends as often as it is asked, and tells its times."""

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
    """Return our own `delay()`, with the setting CLIENT_CONFIRMS as given."""
    os.environ["CLIENT_CONFIRMS"] = str(confirm)
    # Not at the top: what it changes in py-amqp is none of the others'.
    from tasks.site import index

    send: Send = index.delay
    return send


def celery(queue: str, confirm: bool) -> Send:
    """Return the `delay()` of an application without anything of ours."""
    app = Celery("plain", broker=_broker())
    app.conf.task_queues = [Queue(queue, routing_key=queue, queue_arguments=_arguments())]
    app.conf.task_default_queue = queue
    app.conf.task_ignore_result = True
    app.conf.broker_transport_options = {"confirm_publish": confirm}
    task = app.task(name="site.index")(_index)
    return lambda url: task.delay(url=url, domain="site.gov")


def kombu(queue: str, confirm: bool) -> Send:
    """Return the floor: one channel, one message of Celery's shape with next to no headers."""
    producer = Connection(_broker(), transport_options={"confirm_publish": confirm}).Producer(serializer="json")
    headers = {"task": "site.index", "id": queue}

    def publish(url: str) -> None:
        body = [[], {"url": url, "domain": "site.gov"}, {}]
        producer.publish(body, routing_key=queue, headers=headers)

    return publish


SENDERS: dict[str, Callable[[str, bool], Send]] = {"Perennial": perennial, "Celery": celery, "kombu": kombu}


def _index(url: str, domain: str) -> None:
    """Stand for a task; nobody runs it."""


def _broker() -> str:
    return os.environ["BROKER_URL"]


def _arguments() -> dict[str, Any]:
    arguments: dict[str, Any] = json.loads(os.environ["QUEUE_ARGUMENTS"])
    return arguments


def turn(send: Send, calls: int) -> list[float]:
    """Return the seconds that each of so many calls took."""
    taken = []
    for number in range(calls):
        url = f"https://site.gov/folder/page-{number}.html"
        began = time.perf_counter()
        send(url)
        taken.append(time.perf_counter() - began)
    return taken


def main(name: str, queue: str, confirm: bool) -> None:
    """Read a number of calls a line, and answer with a JSON array of their seconds."""
    send = SENDERS[name](queue, confirm)
    for line in sys.stdin:
        print(json.dumps(turn(send, int(line))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3] == "confirm")
