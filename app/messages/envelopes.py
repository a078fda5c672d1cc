"""Envelopes: plain JSON messages with a `type`, and the Celery messages that they become."""

from __future__ import annotations

import json
import time
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.broker.amqp_internals import gunzip
from app.broker.delivery import Delivery
from app.broker.errors import TooDeep, Undecodable, UnknownType
from app.broker.nesting import read_json
from app.broker.outgoing import Outgoing
from app.broker.policies.delays import delay_name, ladder_rung
from app.http.urls import without_credentials_in
from app.topology.queues import events_exchange, queries_exchange, requests_exchange, site_exchange
from app.topology.retry_policies import Budgets
from app.tracing import trace_headers
from config.routes import ROUTE_BY_TYPE, SEARCHER_QUEUE, SITE, Route, routes_by_type

#: Celery's "embed" part of a body: no callbacks, no chain.
_NO_CANVAS: dict[str, None] = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}

#: Compact JSON. `json.dumps` creates a new encoder for each value if separators are given.
_ENCODER = json.JSONEncoder(separators=(",", ":"))

_NO_BUDGETS: Budgets = {}

#: The content encodings of a compressed body, as in HTTP (RFC 9110, 8.4.1.3).
_GZIP = ("gzip", "x-gzip")


@dataclass(frozen=True, slots=True)
class TaskCall:
    """A task by name, with its arguments by name."""

    task: str
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TaskMessage:
    """A message of Celery's protocol 2: its headers, JSON body and task id."""

    headers: dict[str, Any]
    body: str
    id: str


def decode_envelope(body: bytes, encoding: str | None = None) -> dict[str, Any]:
    """Return the JSON object of an envelope's body, with `host` renamed to `domain`; raises Undecodable, TooDeep.

    `encoding` is the content encoding: `gzip`, or a charset. If it names neither, the body is UTF-8.
    """
    try:
        if encoding in _GZIP:
            body, encoding = gunzip(body), None
        try:
            text = body.decode(encoding or "utf-8")
        except LookupError:
            text = body.decode()
        payload = read_json(text)
    except TooDeep:
        raise
    except (ValueError, zlib.error) as error:
        raise Undecodable(f"not {encoding or 'UTF-8'} JSON: {error}: {body[:60]!r}") from error
    if not isinstance(payload, dict):
        raise Undecodable(f"expected a JSON object, got {type(payload).__name__}: {body[:60]!r}")
    if "host" in payload:
        payload.setdefault("domain", payload.pop("host"))
    return payload


def route_of(payload: Mapping[str, Any], queue: str = "") -> Route:
    """Return the route of a payload's `type` in the queue it came from; raises UnknownType."""
    message_type, routes = payload.get("type"), routes_by_type(queue)
    route = routes.get(message_type) if isinstance(message_type, str) else None
    if route is None:
        raise UnknownType(f"type {message_type!r}: expected one of {', '.join(routes)}")
    return route


def call_of_envelope(delivery: Delivery) -> TaskCall:
    """Return the task call of an envelope or an event; raises Undecodable or UnknownType."""
    payload = decode_envelope(delivery.body, delivery.content_encoding)
    route = route_of(payload, delivery.queue)
    del payload["type"]
    return TaskCall(route.task, payload)


def to_task_message(delivery: Delivery, call: TaskCall) -> TaskMessage:
    """Return the task's message for an envelope. Its id, the message or correlation id, stays in every retry."""
    given = delivery.properties.get("message_id") or delivery.properties.get("correlation_id")
    task_id = str(given or uuid.uuid4())
    headers = {
        **delivery.headers,
        "lang": "py",
        "task": call.task,
        "id": task_id,
        "root_id": task_id,
        "parent_id": None,
        "group": None,
        "eta": None,
        "expires": None,
        "retries": 0,
        "timelimit": [None, None],
        "argsrepr": "()",
        "kwargsrepr": without_credentials_in(repr(call.kwargs))[:1024],
        "origin": "plain",
        "ignore_result": True,
    }
    return TaskMessage(headers=headers, body=json.dumps([[], call.kwargs, _NO_CANVAS]), id=task_id)


def site_message(message_type: str, budgets: Budgets = _NO_BUDGETS, /, **payload: Any) -> Outgoing:
    """Return an envelope for the exchange `site`, as a foreign producer would publish it, with an id and the time.

    With the `budgets` of app/topology/retry_policies.py it carries its retry budget. Without, it has the budget of the
    worker in which it fails, as a foreign producer's envelope.
    """
    route = ROUTE_BY_TYPE[message_type]
    body = _as_json({"type": message_type, **payload})
    return Outgoing(
        exchange=site_exchange.name,
        routing_key=route.type,
        body=body,
        headers={**budgets.get(message_type, {}), **trace_headers()},
        properties=_identity(),
    )


def delayed_message(message_type: str, budgets: Budgets, seconds: float, /, **payload: Any) -> Outgoing:
    """Return a `site_message` that waits about `seconds` in a delay queue first, at most the longest rung."""
    message = site_message(message_type, budgets, **payload)
    if seconds <= 0:
        return message
    exchange = delay_name(SITE, ladder_rung(seconds))
    return replace(message, exchange=exchange, routing_key=ROUTE_BY_TYPE[message_type].queue)


def queue_message(queue: str, payload: Mapping[str, Any], budgets: Budgets = _NO_BUDGETS) -> Outgoing:
    """Return an envelope for a queue of the site group, by the queue's name: the callback of a timer."""
    body = _as_json(payload)
    headers = {**budgets.get(str(payload.get("type")), {}), **trace_headers()}
    return Outgoing(exchange=site_exchange.name, routing_key=queue, body=body, headers=headers, properties=_identity())


def searcher_message(searcher_id: str, message_type: str, payload: Mapping[str, Any]) -> Outgoing:
    """Return a message for a searcher's own queue. It is transient: the queue is deleted with its searcher."""
    body = _as_json({"type": message_type, **payload})
    queue = SEARCHER_QUEUE.format(searcher_id)
    properties = {"delivery_mode": 1}
    return Outgoing(exchange="", routing_key=queue, body=body, headers=trace_headers(), properties=properties)


def query_message(searcher_id: str, message_type: str, payload: Mapping[str, Any]) -> Outgoing:
    """Return a client's query for a searcher: as `searcher_message`, by the exchange that clients may publish to."""
    return replace(searcher_message(searcher_id, message_type, payload), exchange=queries_exchange.name)


def event_message(message_type: str, payload: Mapping[str, Any]) -> Outgoing:
    """Return an event for all subscribers; without any it is dropped."""
    body = _as_json({"type": message_type, **payload})
    headers = trace_headers()
    return Outgoing(
        exchange=events_exchange.name, routing_key=message_type, body=body, headers=headers, mandatory=False
    )


def request_message(message_type: str, payload: Mapping[str, Any]) -> Outgoing:
    """Return a request for the queue that is bound to its type. It is transient: its sender waits for the reply."""
    body = _as_json({"type": message_type, **payload})
    return Outgoing(
        exchange=requests_exchange.name, routing_key=message_type, body=body, properties={"delivery_mode": 1}
    )


def _identity() -> dict[str, Any]:
    """Return the properties that replacements and redeliveries keep.

    By its id, a message finds what its earlier run has left in Redis. By its time, one of a removed site is dropped.
    """
    return {"message_id": str(uuid.uuid4()), "timestamp": int(time.time())}


def _as_json(payload: Mapping[str, Any]) -> bytes:
    return _ENCODER.encode(payload).encode()
