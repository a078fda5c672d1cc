"""Calls of cover art tasks: what they mean, what goes out for them, and that a bad one names what is wrong with it."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.broker.errors import UnknownType
from app.coverart.calls import arguments, job_of, message
from app.coverart.messages import kind_of, parse
from app.coverart.values import Delete, Index, Job, Move
from app.errors import InvalidJob

pytestmark = pytest.mark.unit

A = "16ebbc86-670c-4ad3-980b-bfbd1eee4ff4"
B = "76df3287-6cda-33eb-8e9a-044b5e15ffdd"

gids = st.uuids().map(str)
ids = st.integers(1, 2**63 - 1)
suffixes = st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True)
jobs: st.SearchStrategy[Job] = st.one_of(
    st.builds(Index, gids),
    st.builds(Move, ids, gids, gids, suffixes),
    st.builds(Delete, gids, ids, suffixes),
    st.builds(Delete, gids),
)

Call = tuple[str, tuple[Any, ...], dict[str, Any]]


@given(jobs)
def test_a_job_is_the_same_after_the_way_through_arguments_and_through_a_message(job: Job) -> None:
    assert job_of(kind_of(job), (), arguments(job)) == job
    outgoing = message(job, "cover-art-archive", "an id")
    assert parse(outgoing.routing_key, outgoing.body) == job


def test_a_message_has_an_id_and_nothing_else_that_the_real_producer_would_not_send() -> None:
    outgoing = message(Index(A), "cover-art-archive", "an id")
    assert (outgoing.exchange, outgoing.routing_key, outgoing.body) == ("cover-art-archive", "index", A.encode())
    assert (outgoing.headers, outgoing.content_type, outgoing.content_encoding) == ({}, None, None)
    assert outgoing.properties == {"message_id": "an id"}


@pytest.mark.parametrize(
    ("call", "job"),
    [
        (("index", (A.upper(),), {}), Index(A)),
        (("index", (uuid.UUID(A),), {}), Index(A)),
        (("move", (1, A, B), {}), Move(1, A, B, "jpg")),
        (("move", ("1", A), {"new_gid": B, "suffix": "pdf"}), Move(1, A, B, "pdf")),
        (("delete", (A,), {}), Delete(A)),
        (("delete", (A, 7), {}), Delete(A, 7, "jpg")),
        (("delete", (), {"gid": A, "id": 7, "suffix": "png"}), Delete(A, 7, "png")),
    ],
)
def test_a_call_may_be_short(call: Call, job: Job) -> None:
    assert job_of(*call) == job


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (("index", (), {}), r"index\(gid\): missing a required argument: 'gid'"),
        (("index", ("x",), {}), "gid 'x': expected a UUID"),
        (("index", (A.encode(),), {}), "expected a UUID"),
        (("index", (A,), {"gid": B}), "multiple values for argument 'gid'"),
        (("index", (A,), {"mbid": B}), "unexpected keyword argument 'mbid'"),
        (("move", (1, A), {}), r"move\(id, old_gid, new_gid, suffix='jpg'\): .* 'new_gid'"),
        (("move", (0, A, B), {}), "image '0': expected an integer from 1"),
        (("move", (True, A, B), {}), "image 'True'"),
        (("move", (1, "x", B), {}), "old_gid 'x'"),
        (("move", (1, A, "x"), {}), "new_gid 'x'"),
        (("move", (1, A, B, "../jpg"), {}), r"suffix '\.\./jpg'"),
        (("move", (1, A, B, "jpg", 5), {}), "too many positional arguments"),
        (("delete", (A, 1.5), {}), "image '1.5'"),
    ],
)
def test_a_bad_call_is_refused_by_what_is_wrong_with_it(call: Call, told: str) -> None:
    with pytest.raises(InvalidJob, match=told) as raised:
        job_of(*call)
    assert raised.value.permanent


def test_a_kind_that_there_is_not_is_named() -> None:
    with pytest.raises(UnknownType, match="'rename': expected index, move, delete"):
        job_of("rename", (), {})
