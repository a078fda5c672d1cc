"""Processes that a test kills before a chosen operation on the broker, forked from one that has imported everything."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from amqp import spec
from amqp.abstract_channel import AbstractChannel


def serve(run: Callable[[Any], int]) -> None:
    """Run each line of JSON in a fork until standard input ends; answer whether that was killed, or failed."""
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            status = 1
            try:
                status = run(json.loads(line))
            except BaseException:  # noqa: BLE001 - The child must never return to the loop of its parent.
                traceback.print_exc()
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status)
        print(json.dumps({"killed": killed, "failed": bool(status) and not killed}), flush=True)


def before_operations(act: Callable[[str], None], *, settled: Callable[[Any], None] = lambda _: None) -> None:
    """Call `act` with its name before each method is sent, before a confirm is awaited, and before one is read.

    After an acknowledgement or a rejection `settled` is called with the channel.
    """
    send, receive = AbstractChannel.send_method, AbstractChannel.dispatch_method

    def send_method(channel: Any, sig: Any, *args: Any, **kwargs: Any) -> Any:
        act(_NAMES[tuple(sig)])
        sent = send(channel, sig, *args, **kwargs)
        if sig == spec.Basic.Publish:
            act("await confirm")
        if sig in (spec.Basic.Ack, spec.Basic.Reject):
            settled(channel)
        return sent

    def dispatch_method(channel: Any, sig: Any, *args: Any, **kwargs: Any) -> Any:
        if sig == spec.Basic.Ack:
            act("confirm")
        return receive(channel, sig, *args, **kwargs)

    AbstractChannel.send_method = send_method
    AbstractChannel.dispatch_method = dispatch_method


#: The methods of AMQP by their numbers.
_NAMES = {
    sig: f"{kind}.{name}"
    for kind in ("Connection", "Channel", "Exchange", "Queue", "Basic", "Confirm", "Tx")
    for name, sig in vars(getattr(spec, kind)).items()
    if isinstance(sig, tuple)
}
