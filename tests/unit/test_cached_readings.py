"""Parts of an overview that are gathered in threads: what a page reads beside an act."""

from __future__ import annotations

import time
from threading import Event

import pytest

from app.operations.overview import Part

pytestmark = pytest.mark.unit


def test_a_value_that_was_being_gathered_during_an_act_is_gathered_again() -> None:
    began, acted, values = Event(), Event(), iter(["before the act", "after it"])

    def gather() -> str:
        value = next(values)
        began.set()
        assert acted.wait(30)
        return value

    part = Part("part", gather, every=60.0)
    part.start()
    assert began.wait(30)
    part.forget()
    acted.set()
    assert part.read(time.monotonic() + 30).value == "after it"
