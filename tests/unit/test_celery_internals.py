"""Internals of Celery, billiard, kombu and py-amqp that the broker package relies on: a test fails when one changes."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import amqp
import billiard
import celery
import kombu
import pytest
from amqp import abstract_channel, serialization
from amqp.channel import Channel
from amqp.serialization import GenericContent
from billiard.pool import CLOSE, ApplyResult, Pool, Worker
from billiard.process import BaseProcess
from celery import Celery, group
from celery.app.events import Events
from celery.beat import Scheduler
from celery.concurrency import asynpool, prefork
from celery.concurrency.base import BasePool
from celery.events.dispatcher import EventDispatcher
from celery.worker import request
from celery.worker.components import Pool as PoolStep
from celery.worker.consumer import Consumer
from celery.worker.request import Request
from celery.worker.worker import WorkController
from kombu import Exchange, Queue, compression
from kombu.asynchronous.hub import Hub
from kombu.asynchronous.semaphore import LaxBoundedSemaphore
from kombu.message import Message
from kombu.messaging import Consumer as KombuConsumer
from kombu.messaging import Producer
from kombu.resource import Resource

from app.broker import amqp_internals
from app.broker.policies.base import RetryPolicies
from app.broker.policies.drop import DropAll
from app.broker.worker import celery_internals
from app.broker.worker.celery_internals import STEPS_WITHOUT_DELAYED_DELIVERY
from app.broker.worker.consumer import Consumer as OwnConsumer
from app.broker.worker.install import install
from config.settings import ROOT

pytestmark = pytest.mark.unit

#: Function -> its parameters. An override or a replacement has the same ones.
SIGNATURES: list[tuple[Callable[..., Any], str]] = [
    (amqp_internals._original_read_item, "buf, offset"),
    (amqp_internals._original_write_item, "v, write, bits"),
    (amqp_internals._original_loads, "format, buf, offset"),
    (serialization.decode_properties_basic, "buf, offset"),
    (
        Channel._basic_publish,
        "self, msg, exchange, routing_key, mandatory, immediate, timeout, confirm_timeout, argsig",
    ),
    (compression.register, "encoder, decoder, content_type, aliases"),
    (compression.get_encoder, "t"),
    (Producer.revive, "self, channel"),
    (GenericContent._serialize_properties, "self"),
    (Request.send_event, "self, type, fields"),
    (Request.terminate, "self, pool, signal"),
    (Request.on_failure, "self, exc_info, send_failed_event, return_ok"),
    (Request.on_timeout, "self, soft, timeout"),
    (asynpool._get_job_writer, "job"),
    (asynpool.AsynPool.on_job_process_down, "self, job, pid_gone"),
    (asynpool.AsynPool.on_partial_read, "self, job, proc"),
    (asynpool.AsynPool.on_job_process_lost, "self, job, pid, exitcode"),
    (asynpool.AsynPool.register_with_event_loop, "self, hub"),
    (ApplyResult._ack, "self, i, time_accepted, pid, synqW_fd"),
    (ApplyResult.accepted, "self"),
    (EventDispatcher.send, "self, type, blind, utcoffset, retry, retry_policy, Event, fields"),
    (Scheduler.apply_entry, "self, entry, producer"),
    (Scheduler.apply_async, "self, entry, producer, advance, kwargs"),
    (WorkController._process_task, "self, req"),
    (KombuConsumer._basic_consume, "self, queue, consumer_tag, no_ack, nowait"),
    (BasePool.apply_async, "self, target, args, kwargs, options"),
    (LaxBoundedSemaphore.acquire, "self, callback, partial_args, partial_kwargs"),
    (Consumer.on_send_event_buffered, "self"),
    (Consumer.create_task_handler, "self, promise"),
    (Consumer.call_soon_ack, "self, p, args, kwargs"),
]


@pytest.mark.parametrize(("function", "parameters"), SIGNATURES, ids=lambda each: getattr(each, "__qualname__", ""))
def test_a_function_that_is_replaced_or_overridden_has_the_parameters_of_before(
    function: Callable[..., Any], parameters: str
) -> None:
    assert ", ".join(inspect.signature(function).parameters) == parameters


#: Code -> text that its source must contain: an attribute that is read or written, or a call that is relied upon.
SOURCES: list[tuple[Any, str]] = [
    (abstract_channel, "loads("),
    (serialization, "PROPERTY_CLASSES"),
    (Channel.basic_publish_confirm, "confirm_timeout"),
    (KombuConsumer._basic_consume, "tag = self._add_tag(queue, consumer_tag)"),
    (Message, "self._decoded_cache"),
    (Hub.create_loop, "for tick_callback in copy(self.on_tick):\n                tick_callback()\n"),
    (Consumer.create_task_handler, "(message.ack_log_error,)"),
    (WorkController.on_stopped, "self.consumer.shutdown()"),
    (Producer, "self.__connection__"),
    (Resource.force_close_all, "if self._closed:"),
    (Celery.pool.fget, "self._pool"),
    (Events, "self.dispatcher_cls, reverse='events.Dispatcher'"),
    (EventDispatcher._publish, "self._outbound_buffer.append("),
    (Request._announce_cancelled, "task_ready(self)\n        self.send_event('task-cancelled')"),
    (Request._announce_revoked, "task_ready(self)\n        self.send_event('task-revoked',\n"),
    (Request, "def _context(self):"),
    (Request.on_timeout, "if not state.should_terminate"),
    (Request.acknowledge, "self._on_ack(logger, self._connection_errors)"),
    (Request.reject, "self._on_reject(logger, self._connection_errors, requeue)"),
    (BaseProcess, "_controlled_termination"),
    (asynpool, "job._write_to"),
    (asynpool.AsynPool._create_write_handlers, "self.on_poll_start = on_poll_start"),
    (asynpool.AsynPool._create_write_handlers, "hub.consolidate_callback = schedule_writes"),
    (asynpool.AsynPool._create_write_handlers, "busy_workers = self._busy_workers"),
    (asynpool.AsynPool._create_write_handlers, "active_writes = self._active_writes"),
    (asynpool.AsynPool._create_write_handlers, "if is_fair_strategy and ready_fd in busy_workers:"),
    (asynpool.AsynPool._create_write_handlers, "if ready_fd in active_writes:"),
    (asynpool.AsynPool.register_with_event_loop, "hub.on_tick.add(self.on_poll_start)"),
    (asynpool.AsynPool.on_process_alive, "self._all_inqueues.add(proc.inqW_fd)"),
    (asynpool.AsynPool.flush, "job.discard()"),
    (Scheduler.close, "connection = self.__dict__.pop('connection', None)"),
    (Consumer.on_close, "self.pool.flush()"),
    (Worker, "self.on_exit(pid, exitcode)"),
    (prefork.TaskPool.on_start, "on_process_exit=process_destructor,"),
    (prefork.TaskPool, "Pool = AsynPool"),
    (prefork.TaskPool.on_start, "else self.Pool)"),
    (WorkController._process_task_sem, "self._process_task"),
    (WorkController._process_task_sem, "self._quick_acquire("),
    (WorkController._process_task, "except TaskRevokedError:\n            try:\n                self._quick_release()"),
    (PoolStep.create, "w._quick_acquire = w.semaphore.acquire"),
    (Pool._maintain_pool, "self._putlock.release()"),
    (Consumer.on_close, "self.controller.semaphore.clear()"),
    (request.create_request_cls, "apply_async = pool.apply_async"),
    (request.create_request_cls, "accept_callback=self.on_accepted,"),
    (request.create_request_cls, "callback=self.on_success,"),
    (request.create_request_cls, "error_callback=self.on_failure,"),
    (request.create_request_cls, "timeout=time_limit or default_time_limit,"),
    (Request.__init__, "'redelivered': delivery_info.get('redelivered', False)"),
]


@pytest.mark.parametrize(("code", "text"), SOURCES, ids=[text for _, text in SOURCES])
def test_library_code_still_uses_what_is_relied_upon(code: Any, text: str) -> None:
    assert text in inspect.getsource(code)


LIBRARIES = (celery, kombu, billiard, amqp)
_PRIVATE = re.compile(r"\b_[a-z]\w*")
#: To parse all sources would take seconds.
_DEFINITION = re.compile(r"\b(?:def|class) (_[a-z]\w*)|\b(_[a-z]\w*)(?:, [\w.]+)*(?:: [^=\n]+)? [-+|]?= ")
_LOOK_UPS = {"getattr", "setattr", "hasattr", "delattr"}


def private_names() -> dict[str, set[str]]:
    """Return name -> modules that use it.

    A use is an attribute of an object that a library defines, a look-up by name, or an import. In a class below one of
    a library it is any name of that class.
    """
    uses: dict[str, set[str]] = {}
    for path in [each for folder in ("app", "tasks", "config") for each in (ROOT / folder).rglob("*.py")]:
        text = path.read_text()
        if re.search(r"\b(celery|kombu|billiard|amqp)\b", text):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for name in _used(ast.parse(text), module):
                uses.setdefault(name, set()).add(module)
    return uses


def _used(tree: ast.Module, module: str) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=value, attr=name) if name in _defined():
                if ast.unparse(value) not in ("self", "cls", "super()"):
                    yield name
            case ast.Call(func=ast.Name(id=call), args=[_, ast.Constant(value=str(name)), *_]) if call in _LOOK_UPS:
                if name in _defined():
                    yield name
            case ast.ImportFrom(module=str(source), names=names) if source.split(".")[0] in _packages():
                yield from (each.name for each in names if _PRIVATE.match(each.name))
            case ast.ClassDef(name=name) if hasattr(importlib.import_module(module), name):
                above = _names_of_libraries(getattr(importlib.import_module(module), name))
                yield from above.intersection(_PRIVATE.findall(ast.unparse(node)))


def _names_of_libraries(cls: type) -> set[str]:
    above = [each for each in cls.__mro__ if each.__module__.split(".")[0] in _packages()]
    return {name for each in above for name in _PRIVATE.findall(inspect.getsource(each))}


def _packages() -> set[str]:
    return {library.__name__ for library in LIBRARIES}


@cache
def _defined() -> frozenset[str]:
    """Return the private names that the libraries define: functions, classes, attributes and variables."""
    paths = (path for library in LIBRARIES for path in Path(str(library.__file__)).parent.rglob("*.py"))
    names = (name for path in paths for found in _DEFINITION.findall(path.read_text()) for name in found)
    return frozenset(filter(None, names))


def test_a_private_name_of_a_library_is_used_in_two_modules_and_named_above() -> None:
    uses = private_names()
    assert set().union(*uses.values()) == {amqp_internals.__name__, celery_internals.__name__}
    named = " ".join([f"{getattr(each, '__qualname__', '')}" for each, _ in SIGNATURES] + [text for _, text in SOURCES])
    assert [name for name in uses if name not in named] == []
    # A library may drop them at any release. This is a limit, not an aim: a new one replaces another.
    assert len(uses) <= 16


def test_one_step_of_celerys_consumer_is_left_out() -> None:
    left_out = set(Consumer.Blueprint.default_steps) - set(STEPS_WITHOUT_DELAYED_DELIVERY)
    assert [str(step) for step in left_out] == ["celery.worker.consumer.delayed_delivery:DelayedDelivery"]


def test_celery_sends_every_task_through_the_function_that_is_replaced() -> None:
    app = Celery("post", broker="memory://", set_as_current=False)
    app.conf.task_queues = [Queue("mail", Exchange(""), routing_key="mail")]
    app.conf.task_default_queue = "mail"
    install(app, RetryPolicies({}, default=DropAll()), confirm=False)
    sent: list[tuple[str, int]] = []
    app.amqp.__dict__["send_task_message"] = lambda _producer, name, _message, **options: sent.append(
        (name, options["retry_max"])
    )
    app.send_task("post.send", retry_max=1)
    app.signature("post.send").apply_async(retry_max=1)
    group([app.signature("post.send")] * 2, app=app).apply_async(retry_max=1)
    assert sent == [("post.send", 1)] * 4


def test_importing_the_package_changes_no_library() -> None:
    """The decoder is replaced by `install` and by the first connection, not by an import."""
    program = (
        "from amqp import serialization; before = serialization._read_item\n"
        "import app.broker.publishing, app.broker.dead_letters.sets, app.broker.worker.producer\n"
        "import app.broker.rpc.requestor, app.broker.rpc.responder\n"
        "assert serialization._read_item is before\n"
        "from app.broker.connection import connection_to\n"
        "connection_to('amqp://', timeout=1)\n"
        "assert serialization._read_item is not before\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_pool_that_stops_waits_for_what_its_processes_have_received() -> None:
    jobs: dict[int, ApplyResult] = {}
    begun, received, waiting = (ApplyResult(jobs, None) for _ in range(3))
    begun._accepted, received._write_to = True, SimpleNamespace(_is_alive=lambda: True, inqW_fd=1)
    pool = object.__new__(celery_internals.Pool)
    pool._cache, pool.synack, pool.outbound_buffer, pool._state = jobs, False, deque([waiting]), CLOSE
    pool._active_writers, pool._active_writes, pool._busy_workers = set(), set(), set()
    pool.maintain_pool = lambda: None
    pool.is_closed = True
    pool.flush()
    assert list(jobs.values()) == [begun, received]
    pool.is_closed = False  # The connection is lost: the broker delivers again what has not begun.
    pool.flush()
    assert list(jobs.values()) == [begun]


def test_an_event_loop_answers_messages_before_it_waits_and_other_threads_leave_their_answers_to_its_next_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer = object.__new__(OwnConsumer)
    answered: list[str] = []
    answered_at_wait: list[list[str]] = []
    # Without a socket to read from, the loop would not wait.
    reader, writer = socket.socketpair()
    with reader, writer, closing(Hub()) as hub:
        hub.add_reader(reader, lambda: None)
        monkeypatch.setattr(hub.poller, "poll", lambda _seconds: answered_at_wait.append(list(answered)))
        consumer.hub, consumer._loop_thread = hub, threading.get_ident()
        # Failures are decided on together at the end of a turn.
        hub.on_tick.add(lambda: consumer.call_soon_ack(answered.append, "of this turn"))
        loop = hub.create_loop()
        next(loop)
        assert answered_at_wait == [["of this turn"]]
        hub.on_tick.clear()
        thread = threading.Thread(target=consumer.call_soon_ack, args=(answered.append, "of a thread"))
        thread.start()
        thread.join()
        assert answered == ["of this turn"]
        next(loop)
    assert answered_at_wait[1:] == [["of this turn", "of a thread"]]
