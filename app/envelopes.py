"""Plain AMQP messages as tasks: what a foreign producer posts becomes the Celery message that its route names."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.broker.delivery import Delivery
from app.broker.errors import Undecodable, UnknownType
from app.broker.publishing import Outgoing
from app.topology.policies import Budgets
from app.topology.queues import events_exchange, requests_exchange, site_exchange
from config.routes import ROUTE_BY_TYPE, Route, routes_by_type, searcher_queue_name

#: Celery's "embed": no callbacks, no chain.
_NO_CANVAS: dict[str, None] = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}

#: Compact JSON; `json.dumps` makes an encoder anew for each value that is to be compact.
_ENCODER = json.JSONEncoder(separators=(",", ":"))

_NO_BUDGETS: Budgets = {}


@dataclass(frozen=True, slots=True)
class Call:
    """A task by name, with its arguments by name."""

    task: str
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TaskMessage:
    """What Celery expects of a message of its protocol 2: headers and a JSON body."""

    headers: dict[str, Any]
    body: str
    id: str


def decode(body: bytes, encoding: str | None = None) -> dict[str, Any]:
    """Return the JSON object of a plain body, `host` read as `domain`; raises Undecodable naming what is wrong.

    `encoding` is the content encoding; where it names no charset the body is UTF-8.
    """
    try:
        payload = json.loads(_text(body, encoding or "utf-8"))
    except (ValueError, RecursionError) as error:
        raise Undecodable(f"not {encoding or 'UTF-8'} JSON: {error}: {body[:60]!r}") from error
    if not isinstance(payload, dict):
        raise Undecodable(f"expected a JSON object, got {type(payload).__name__}: {body[:60]!r}")
    if "host" in payload:
        payload.setdefault("domain", payload.pop("host"))
    return payload


def _text(body: bytes, encoding: str) -> str:
    try:
        return body.decode(encoding)
    except LookupError:
        return body.decode()


def route_of(payload: Mapping[str, Any], queue: str = "") -> Route:
    """Return the route that a payload's `type` names among those of the queue it came from; raises UnknownType."""
    kind, known = payload.get("type"), routes_by_type(queue)
    route = known.get(kind) if isinstance(kind, str) else None
    if route is None:
        raise UnknownType(f"type {kind!r}: expected one of {', '.join(known)}")
    return route


def call_of_envelope(delivery: Delivery) -> Call:
    """Return the call that a JSON body means, be it site work or an event; raises Undecodable or UnknownType."""
    payload = decode(delivery.body, delivery.content_encoding)
    route = route_of(payload, delivery.queue)
    del payload["type"]
    return Call(route.task, payload)


def to_task_message(delivery: Delivery, call: Call) -> TaskMessage:
    """Translate a plain delivery; the task's id is the sender's message or correlation id, the same in every retry."""
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
        "kwargsrepr": repr(call.kwargs)[:1024],
        "origin": "plain",
        "ignore_result": True,
    }
    return TaskMessage(headers=headers, body=json.dumps([[], call.kwargs, _NO_CANVAS]), id=task_id)


def site_message(kind: str, budgets: Budgets = _NO_BUDGETS, /, **payload: Any) -> Outgoing:
    """Return a plain message of the `site` exchange, as any foreign producer would post it.

    With the `budgets` of app/topology/declare.py its retry policy travels with it from the start; without, and as a
    foreign producer's, it gets that of the worker which sees it fail.
    """
    route = ROUTE_BY_TYPE[kind]
    body = _as_json({"type": kind, **payload})
    return Outgoing(exchange=site_exchange.name, routing_key=route.type, body=body, headers=budgets.get(kind, {}))


def queue_message(queue: str, payload: Mapping[str, Any], budgets: Budgets = _NO_BUDGETS) -> Outgoing:
    """Return a plain message for one of our queues, by its name: a timer's callback."""
    body = _as_json(payload)
    headers = budgets.get(str(payload.get("type")), {})
    return Outgoing(exchange=site_exchange.name, routing_key=queue, body=body, headers=headers)


def searcher_message(searcher_id: str, kind: str, payload: Mapping[str, Any]) -> Outgoing:
    """Return a message for a searcher's own queue: not kept on disk, for a searcher that is gone needs it no more."""
    body = _as_json({"type": kind, **payload})
    queue = searcher_queue_name(searcher_id)
    return Outgoing(exchange="", routing_key=queue, body=body, properties={"delivery_mode": 1})


def event(kind: str, payload: Mapping[str, Any]) -> Outgoing:
    """Return an event: told to whoever listens, and to nobody if nobody does."""
    body = _as_json({"type": kind, **payload})
    return Outgoing(exchange=events_exchange.name, routing_key=kind, body=body, mandatory=False)


def request(kind: str, payload: Mapping[str, Any]) -> Outgoing:
    """Return a request to whoever is bound for its type: not kept on disk, for its answer is awaited now."""
    body = _as_json({"type": kind, **payload})
    return Outgoing(exchange=requests_exchange.name, routing_key=kind, body=body, properties={"delivery_mode": 1})


def _as_json(payload: Mapping[str, Any]) -> bytes:
    return _ENCODER.encode(payload).encode()
