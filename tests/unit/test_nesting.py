"""How deeply a body may be nested before it is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.broker.errors import InvalidMessage, TooDeep
from app.broker.nesting import MAX_NESTING, may_be_deep, read_json, require_shallow

pytestmark = pytest.mark.unit


@given(st.lists(st.sampled_from(["list", "object"]), min_size=MAX_NESTING - 2, max_size=MAX_NESTING + 2), st.text())
def test_a_body_is_refused_from_the_first_level_beyond_the_limit(kinds: list[str], text: str) -> None:
    value: object = 1
    for kind in kinds:
        value = [text, value] if kind == "list" else {text: 0, f"{text}x": value}
    if len(kinds) <= MAX_NESTING:
        require_shallow(value)
        assert read_json(json.dumps(value)) == value
        return
    assert may_be_deep(json.dumps(value))
    with pytest.raises(InvalidMessage, match="more than 100 levels"):
        require_shallow(value)
    with pytest.raises(InvalidMessage, match="more than 100 levels"):
        read_json(json.dumps(value).encode())


@pytest.mark.parametrize("levels", [101, 900, 1_000, 3_000, 9_990, 100_000])
def test_json_that_only_some_versions_of_python_can_read_is_refused_by_each(levels: int) -> None:
    for opening, closing in ("[]", ('{"":', "}")):
        with pytest.raises(TooDeep):
            read_json(opening * levels + "1" + closing * levels)


def test_brackets_in_a_text_are_no_levels() -> None:
    assert read_json(b'"' + b"[" * 500 + b'"') == "[" * 500


def test_a_wide_body_is_not_deep() -> None:
    require_shallow([[{}] * 300] * 300)
