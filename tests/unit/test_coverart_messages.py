"""Plain bodies of the cover art archive: what is read from them, what is refused, and that ours are the triggers'."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.broker.errors import InvalidMessage, UnknownType
from app.coverart.messages import body, kind_of, parse
from app.coverart.values import Delete, Index, Job, Move
from app.errors import InvalidJob

pytestmark = pytest.mark.unit

A = "16ebbc86-670c-4ad3-980b-bfbd1eee4ff4"
B = "76df3287-6cda-33eb-8e9a-044b5e15ffdd"

#: What the triggers of a real server were seen to publish.
SEEN: list[tuple[Job, bytes]] = [
    (Index(A), A.encode()),
    (Move(1, A, B, "jpg"), f"1\n{A}\n{B}\njpg\n".encode()),
    (Delete(A, 1, "jpg"), f"1\n{A}\njpg".encode()),
    (Delete(A), f"index.json\n{A}".encode()),
]

gids = st.uuids().map(str)
ids = st.integers(1, 2**63 - 1)
suffixes = st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True)
jobs: st.SearchStrategy[Job] = st.one_of(
    st.builds(Index, gids),
    st.builds(Move, ids, gids, gids, suffixes),
    st.builds(Delete, gids, ids, suffixes),
    st.builds(Delete, gids),
)


@pytest.mark.parametrize(("job", "wire"), SEEN)
def test_what_the_triggers_publish_is_read_and_written_byte_for_byte(job: Job, wire: bytes) -> None:
    assert parse(kind_of(job), wire) == job
    assert body(job) == wire


@given(jobs)
def test_a_job_is_what_its_body_means(job: Job) -> None:
    assert parse(kind_of(job), body(job)) == job


@given(jobs, st.integers(0, 3), st.booleans())
def test_line_feeds_at_the_end_and_capital_letters_of_a_gid_change_nothing(job: Job, feeds: int, upper: bool) -> None:
    wire = body(job)
    if upper:
        wire = b"\n".join(line.upper() if line.count(b"-") == 4 else line for line in wire.split(b"\n"))
    assert parse(kind_of(job), wire + b"\n" * feeds) == job


lines = st.sampled_from(["", "1", "index.json", A, B.upper(), "jpg", "\r", "\x85", "é" * 70]) | st.text(max_size=80)
wires = st.binary(max_size=120) | st.lists(lines, max_size=6).map(lambda parts: "\n".join(parts).encode())


@given(st.sampled_from(["index", "move", "delete"]), wires)
def test_any_bytes_are_a_job_or_refused_with_one_short_error(kind: str, wire: bytes) -> None:
    try:
        job = parse(kind, wire)
    except InvalidJob as error:
        length = len(str(error))
        assert 0 < length < 400
    else:
        assert parse(kind, body(job)) == job


@pytest.mark.parametrize(
    ("kind", "wire", "job"),
    [
        ("move", f"7\n{A}\n{B}", Move(7, A, B, "jpg")),
        ("move", f"7\n{A}\n{B}\n\n", Move(7, A, B, "jpg")),
        ("delete", f"7\n{A}", Delete(A, 7, "jpg")),
        ("index", f"{A}\nsomething\nmore", Index(A)),
        ("move", f"7\n{A}\n{B}\npng\nmore", Move(7, A, B, "png")),
        ("delete", f"7\n{A}\npdf\nmore", Delete(A, 7, "pdf")),
        ("delete", f"index.json\n{A}\njpg", Delete(A)),
    ],
)
def test_a_missing_suffix_is_jpg_and_extra_lines_are_ignored(kind: str, wire: str, job: Job) -> None:
    assert parse(kind, wire.encode()) == job


@pytest.mark.parametrize(
    ("kind", "wire", "reason"),
    [
        ("index", b"", "index: the body is empty"),
        ("move", b"\n\n", "move: the body is empty"),
        ("index", b"\xff\xfe", "index: not UTF-8 at byte 0"),
        ("index", b"abc", "gid 'abc': expected a UUID"),
        ("index", f" {A}".encode(), "expected a UUID"),
        ("index", f"{A}\r\n".encode(), "expected a UUID"),
        ("index", A.replace("-", "").encode(), "expected a UUID"),
        ("move", f"1\n{A}\nnone\njpg".encode(), "new gid 'none': expected a UUID"),
        ("move", f"1\n{A}".encode(), "move: line 3 of image, old gid, new gid is missing"),
        ("move", f"one\n{A}\n{B}".encode(), "image 'one': expected an integer"),
        ("delete", f"-1\n{A}\njpg".encode(), "image '-1': expected an integer"),
        ("delete", f"0\n{A}\njpg".encode(), "image '0': expected an integer"),
        ("delete", f"٣\n{A}\njpg".encode(), "expected an integer"),
        ("delete", f"{2**63}\n{A}\njpg".encode(), "expected an integer"),
        ("delete", f"{'9' * 5000}\n{A}\njpg".encode(), "expected an integer"),
        ("delete", f"1\n{A}\n../x".encode(), "suffix '../x': expected one to eight"),
        ("delete", f"1\n{A}\nJPG".encode(), "suffix 'JPG': expected one to eight"),
        ("delete", f"1\n{A}\n\nmore".encode(), "suffix '': expected one to eight"),
        ("delete", b"index.json", "delete: line 2 of image, gid is missing"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_line_and_the_reason(kind: str, wire: bytes, reason: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        parse(kind, wire)
    assert reason in str(caught.value)
    assert caught.value.permanent
    assert isinstance(caught.value, InvalidMessage)


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(UnknownType, match="kind 'copy'"):
        parse("copy", A.encode())
