"""Celery's way to the broker: a new message carries its retry budget, and the sender can wait for its confirm."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping
from typing import Any

from amqp.exceptions import AMQPError, MessageNacked
from celery.app import amqp as celery_amqp
from kombu import Producer, pools
from kombu.connection import is_connection
from kombu.exceptions import OperationalError
from kombu.messaging import ChannelPromise
from kombu.utils.objects import cached_property

from ..amqp_internals import PrefetchingConsumer
from ..connection import NodesConnection
from ..errors import InvalidMessage, PublishFailed
from ..policies.base import Policy
from .celery_internals import leave_connections_after_fork

#: Exceptions after which a message may not have arrived.
_NOT_SENT = (AMQPError, MessageNacked, OSError, OperationalError)

#: Settings that Celery looks up at each send, in several maps: up to 20 us each. Copied once.
_READ_AT_EACH_SEND = (
    "broker_pool_acquire_timeout",
    "task_always_eager",
    "task_inherit_parent_priority",
    "task_protocol",
    "task_repr_maxlevels",
    "task_send_sent_event",
)

Send = Callable[..., Any]


class NotConfirmed(PublishFailed, OperationalError):  # type: ignore[misc]
    """Raised when a confirmed send failed. Also an OperationalError, which callers of Celery already catch."""


class AMQP(celery_amqp.AMQP):  # type: ignore[misc]
    """Celery's `app.amqp` with three more options for `apply_async`, `send_task`, signatures and beat.

    - `confirm`: wait until the broker has the message in a queue. Raises NotConfirmed if the broker refuses it, cannot
      route it, or does not answer within the timeout of `install`. Without it a call is faster by one round trip, and
      none of these failures is reported. The default is that of `install`; a running task always waits.
    - `retry_timeout_ms`, `retry_max`: the retry budget of this message, if the policy of its queue is `delay_queues`.
      Otherwise, and for a last delay of more than 2^31 - 1 ms, they raise InvalidMessage.

    A countdown or an eta raises InvalidMessage: a worker would hold the message in its memory.

    A send ends in time, whatever the broker does. Each read and write on its connection takes `publish_timeout` seconds
    at most, and so does the wait for a free connection. A failed attempt is the last one after that time.
    """

    #: A failover takes the next node with the check of its own certificate.
    Connection = NodesConnection

    #: The producers of this process: `leave_connections_after_fork` forgets them.
    producers: Any = None

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        #: Names of the queues that a worker does not consume from, because the broker refuses them now.
        self.refused: Container[str] = ()
        self._budgets: dict[str, Mapping[str, Any]] = {}
        # The topmost map is read first, and a later change of a setting still counts.
        app.conf.update({name: app.conf[name] for name in _READ_AT_EACH_SEND})
        leave_connections_after_fork(self)

    @property
    def producer_pool(self) -> Any:
        """Return the producers of this process. A blocked connection is not read: a read without a limit never ends."""
        pool = self.producers
        if pool is None:
            timeout = self.app.retries.publish_timeout
            bounds = {"read_timeout": timeout, "write_timeout": timeout}
            pool = self.producers = pools.producers[self.app.connection_for_write(transport_options=bounds)]
            pool.limit = self.app.pool.limit
        return pool

    @cached_property  # type: ignore[untyped-decorator]
    def send_task_message(self) -> Send:
        """Return the function through which Celery publishes every task's message."""
        send: Send = super().send_task_message

        def send_task_message(producer: Any, name: str, message: Any, **options: Any) -> Any:
            # In Celery's protocol 1, the body is a table with what headers hold now.
            if (message.headers or message.body).get("eta"):
                raise InvalidMessage(f"{name}: neither countdown nor eta; every delay is a message in the broker")
            for header, value in self._budget(options).items():
                message.headers.setdefault(header, value)
            message.properties.setdefault("timestamp", int(time.time()))
            timeout = self.app.retries.publish_timeout
            # Of a write: a broker that stops reading would otherwise block the sender forever.
            options.setdefault("timeout", timeout)
            options["retry_policy"] = _ending_in_time(options.get("retry_policy") or {}, timeout)
            confirm = options.pop("confirm", None)
            try:
                if self.app.current_worker_task or (self.app.retries.confirm if confirm is None else confirm):
                    return _send_confirmed(send, producer, name, message, timeout, options)
                return _declare_once(send, producer, name, message, options)
            finally:
                # kombu keeps it for other uses of the connection.
                producer.connection.transport_options.pop("errback", None)

        return send_task_message

    def TaskConsumer(self, channel: Any, queues: Any = None, accept: Any = None, **options: Any) -> Any:  # noqa: N802 - Celery's name.
        """Return the consumer of a worker's queues, without the refused ones."""
        chosen = [queue for queue in queues or self.queues.consume_from.values() if queue.name not in self.refused]
        accept = self.app.conf.accept_content if accept is None else accept
        return PrefetchingConsumer(channel, chosen, accept=accept, **options)

    def _budget(self, options: dict[str, Any]) -> Mapping[str, Any]:
        """Return the budget headers of a new message, and remove the options that set them."""
        timeout_ms, retry_max = options.pop("retry_timeout_ms", None), options.pop("retry_max", None)
        queue = _queue_name(options.get("queue"))
        policy: Policy = self.app.retries.policies.policy_for(queue)
        if timeout_ms is not None or retry_max is not None:
            return policy.budget_headers(timeout_ms=timeout_ms, retry_max=retry_max)
        if queue not in self._budgets:
            self._budgets[queue] = policy.budget_headers()
        return self._budgets[queue]


def _ending_in_time(policy: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Return a publish policy whose last attempt is the first one that fails after these seconds.

    A policy limits the number of attempts only, each with as many attempts to connect.
    """
    deadline, errback = time.monotonic() + seconds, policy.get("errback")

    def require_time(error: Exception, interval: float) -> None:
        if errback:
            errback(error, interval)
        if time.monotonic() > deadline:
            raise OperationalError(f"no more attempts after {seconds:g} s: {error!r}") from error

    return {**policy, "errback": require_time}


class _ConfirmingProducer(Producer):  # type: ignore[misc]
    """A producer on a second channel of a connection, which is in confirm mode; after a reconnection on a new one."""

    def __init__(self, connection: Any, *, timeout: float) -> None:
        self._timeout = timeout
        #: The channel, once it is open.
        self.opened: Any = None
        super().__init__(connection)

    def revive(self, channel: Any) -> None:
        connection = channel if is_connection(channel) else channel.connection.client
        self.__connection__ = connection
        self.opened = None

        def opened() -> Any:
            self.opened = _confirm_channel(connection, self._timeout)
            return self.opened

        super().revive(ChannelPromise(opened))

    @property
    def is_usable(self) -> bool:
        return self.opened is None or bool(self.opened.is_open)


def _confirm_channel(connection: Any, timeout: float) -> Any:
    """Return a new channel whose `basic_publish` waits for the confirm, and names the message in its errors."""
    # The default channel comes first: it opens the connection by the retry policy of the call.
    channel = connection.default_channel.connection.channel()
    returned: list[str] = []
    channel.events["basic_return"].add(lambda error, *_: returned.append(str(error)))

    def basic_publish(message: Any, exchange: str = "", routing_key: str = "", **options: Any) -> None:
        target = f"exchange {exchange!r} with key {routing_key!r}"
        options["confirm_timeout"] = options.get("confirm_timeout") or timeout
        try:
            channel.basic_publish_confirm(message, exchange=exchange, routing_key=routing_key, **options)
        except MessageNacked as error:
            # kombu tries again after this exception, on a new connection, by Celery's task_publish_retry_policy.
            raise MessageNacked(f"the broker refused it: {target}") from error
        except TimeoutError as error:
            raise NotConfirmed(f"no answer in {options['confirm_timeout']:g} s: {target}") from error
        if returned:
            raise NotConfirmed(f"no queue is bound: {target}: {returned.pop()}")

    channel.basic_publish = basic_publish
    return channel


def _send_confirmed(send: Send, producer: Any, name: str, message: Any, timeout: float, options: dict[str, Any]) -> Any:
    """Send and wait for the confirm. After a failure drop the connection: a late confirm may arrive on it."""
    connection = producer.connection
    confirming: _ConfirmingProducer | None = vars(connection).get("confirming")
    try:
        if confirming is None or not confirming.is_usable:
            confirming = connection.confirming = _ConfirmingProducer(connection, timeout=timeout)
        return _declare_once(send, confirming, name, message, {**options, "mandatory": True})
    except BaseException as error:
        connection.collect(socket_timeout=1)
        if isinstance(error, _NOT_SENT):
            raise NotConfirmed(f"{name}[{message.properties['correlation_id']}] is not confirmed: {error}") from error
        raise


def _declare_once(send: Send, producer: Any, name: str, message: Any, options: dict[str, Any]) -> Any:
    """Send; if the queue was declared on this connection before, do not let kombu check it again, which takes 30 us."""
    queue, declared = _queue_name(options.get("queue")), producer.connection.declared_entities
    was_declared = queue in declared
    if was_declared:
        options.setdefault("declare", ())
    sent = send(producer, name, message, **options)
    if queue and not was_declared and options.get("declare") is None:
        declared.add(queue)
    return sent


def _queue_name(queue: Any) -> str:
    return queue if isinstance(queue, str) else getattr(queue, "name", "")
