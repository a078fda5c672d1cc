"""Hooks that wait for a service are called again, in their order and with one pause for all."""

from __future__ import annotations

import logging
from functools import partial

import pytest

from app.broker.errors import Postpone
from app.broker.worker.task_hooks import HookQueue
from tests.support.clock import HandTimer

pytestmark = pytest.mark.unit


def test_a_hook_that_cannot_act_yet_is_called_again_and_later_ones_wait_behind_it() -> None:
    timer = HandTimer()
    hooks, away = HookQueue(timer), True
    acted, called = list[int](), list[int]()

    def hook(number: int) -> None:
        called.append(number)
        if away:
            raise Postpone(8.0, "Redis is silent")
        acted.append(number)

    for number in (1, 2, 3):
        hooks.call(f"hook {number}", partial(hook, number))
    assert (acted, called, timer.seconds) == ([], [1], [8.0])
    timer.pass_time()
    assert (acted, called) == ([], [1, 1])
    away = False
    timer.pass_time()
    assert acted == [1, 2, 3]
    hooks.call("hook 4", partial(hook, 4))
    assert acted == [1, 2, 3, 4]


def test_a_hook_that_fails_is_logged_and_keeps_no_other_back(caplog: pytest.LogCaptureFixture) -> None:
    hooks, acted = HookQueue(HandTimer()), list[int]()
    hooks.call("hook 1", lambda: acted[7:8].remove(1))
    hooks.call("hook 2", lambda: acted.append(2))
    assert acted == [2]
    assert "hook 1 failed: ValueError" in caplog.text


def test_what_waits_at_the_end_is_called_once_more(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    hooks, away, acted = HookQueue(HandTimer()), True, list[int]()

    def hook(number: int) -> None:
        if away:
            raise Postpone(8.0, "Redis is silent")
        acted.append(number)

    hooks.call("hook 1", partial(hook, 1))
    away = False
    hooks.close()
    assert acted == [1]
    away = True
    hooks.call("hook 2", partial(hook, 2))
    hooks.close()
    assert "Hooks not called, since the worker ends: 1" in caplog.text
