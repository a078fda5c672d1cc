"""A replay or drop that is killed before a chosen operation, in a process forked from this one.

It reads lines of JSON, [act, broker, operation, file], and answers each with whether its operator was killed. An act
such as "replay in shards" is done with shards of few letters.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from amqp import spec
from amqp.abstract_channel import AbstractChannel

from app.broker.dead_letters import ActResult, audit, exports
from app.broker.dead_letters.letters import LetterFilter
from app.broker.publishing import Publisher
from tests.support.dead import dead_sets, journal_in, small_shards

#: Methods that open and close connections and channels. A kill before one of them leaves the broker as a kill before
#: the next other operation does.
_SETUP = (spec.Connection.CLASS_ID, spec.Channel.CLASS_ID)


def main() -> None:
    """Serve orders until standard input ends."""
    for line in sys.stdin:
        act, broker, operation, file = json.loads(line)
        if (child := os.fork()) == 0:
            _in_child(act, broker, operation, Path(file))
        _, status = os.waitpid(child, 0)
        print(
            json.dumps({"killed": os.WIFSIGNALED(status), "failed": bool(status) and not os.WIFSIGNALED(status)}),
            flush=True,
        )


def _in_child(act: str, broker: str, operation: int, file: Path) -> None:
    status = 1
    try:
        act, _, shards = act.partition(" ")
        if shards:
            small_shards()
        _kill_before(operation)
        journal = journal_in(file.with_suffix(".sent"))
        dead = dead_sets(broker, Publisher(broker), file.with_suffix(".audit"), journal=journal).only("post.dead")
        acts: dict[str, Callable[[], ActResult]] = {
            "replay": dead.replay,
            "drop": lambda: dead.drop(LetterFilter(), file),
            "tidy": lambda: dead.tidy(0, file)[1],
        }
        status = 0 if acts[act]().complete else 1
    except BaseException:  # noqa: BLE001 - The child must never return to the loop of its parent.
        traceback.print_exc()
    finally:
        os._exit(status)


def _kill_before(operation: int) -> None:
    """Kill this process before its n-th operation: a method sent, a confirm received, or a write to the export."""
    left = operation
    send, receive = AbstractChannel.send_method, AbstractChannel.dispatch_method

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def send_method(channel: Any, sig: Any, *args: Any, **kwargs: Any) -> Any:
        if sig[0] not in _SETUP:
            count()
        return send(channel, sig, *args, **kwargs)

    def dispatch_method(channel: Any, sig: Any, *args: Any, **kwargs: Any) -> Any:
        if sig == spec.Basic.Ack:
            count()
        return receive(channel, sig, *args, **kwargs)

    def append_lines(*args: Any, **options: Any) -> None:
        count()
        append(*args, **options)

    append = audit.append_lines
    AbstractChannel.send_method = send_method
    AbstractChannel.dispatch_method = dispatch_method
    # The exporter has a name of its own for it.
    exports.__dict__["append_lines"] = append_lines


if __name__ == "__main__":
    main()
