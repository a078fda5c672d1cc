"""Cover art: bodies of messages and calls become jobs, and `index.json` is byte for byte what readers expect."""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.broker.errors import InvalidMessage, UnknownType
from app.coverart.jobs import Delete, Index, Job, Move, body_of, job_of, kind_of, message, parse
from app.coverart.project import COVER_ART, EVENT_ART, PROJECTS, Entity, Image, Project, listing
from app.errors import InvalidJob

pytestmark = pytest.mark.unit


A = "16ebbc86-670c-4ad3-980b-bfbd1eee4ff4"
B = "76df3287-6cda-33eb-8e9a-044b5e15ffdd"

#: Bodies recorded from the triggers of a real server.
RECORDED: list[tuple[Job, bytes]] = [
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


@pytest.mark.parametrize(("job", "wire"), RECORDED)
def test_recorded_bodies_are_read_and_written_byte_for_byte(job: Job, wire: bytes) -> None:
    assert parse(kind_of(job), wire) == job
    assert body_of(job) == wire


@given(jobs, st.integers(0, 3), st.booleans())
def test_trailing_line_feeds_and_upper_case_gids_are_accepted(job: Job, feeds: int, upper: bool) -> None:
    wire = body_of(job)
    if upper:
        wire = b"\n".join(line.upper() if line.count(b"-") == 4 else line for line in wire.split(b"\n"))
    assert parse(kind_of(job), wire + b"\n" * feeds) == job


lines = st.sampled_from(["", "1", "index.json", A, B.upper(), "jpg", "\r", "\x85", "é" * 70]) | st.text(max_size=80)
wires = st.binary(max_size=120) | st.lists(lines, max_size=6).map(lambda parts: "\n".join(parts).encode())


@given(st.sampled_from(["index", "move", "delete"]), wires)
def test_any_bytes_are_a_job_or_one_short_error(kind: str, wire: bytes) -> None:
    try:
        job = parse(kind, wire)
    except InvalidJob as error:
        length = len(str(error))
        assert 0 < length < 400
    else:
        assert parse(kind, body_of(job)) == job


@pytest.mark.parametrize(
    ("kind", "wire", "job"),
    [
        ("move", f"7\n{A}\n{B}\n\n", Move(7, A, B, "jpg")),
        ("delete", f"7\n{A}", Delete(A, 7, "jpg")),
        ("index", f"{A}\nsomething\nmore", Index(A)),
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
        ("index", b"\xff\xfe", "index: not UTF-8 at byte 0"),
        ("index", f" {A}".encode(), "expected a UUID"),
        ("index", f"{A}\r\n".encode(), "expected a UUID"),
        ("move", f"1\n{A}\nnone\njpg".encode(), "new_gid 'none': expected a UUID"),
        ("move", f"1\n{A}".encode(), "move: line 3 of id, old_gid, new_gid is missing"),
        ("delete", f"0\n{A}\njpg".encode(), "image '0': expected an integer"),
        ("delete", f"٣\n{A}\njpg".encode(), "expected an integer"),
        ("delete", f"{2**63}\n{A}\njpg".encode(), "expected an integer"),
        ("delete", f"{'9' * 5000}\n{A}\njpg".encode(), "expected an integer"),
        ("delete", f"1\n{A}\n../x".encode(), "suffix '../x': expected one to eight"),
        ("delete", f"1\n{A}\n\nmore".encode(), "suffix '': expected one to eight"),
        ("delete", b"index.json", "delete: line 2 of id, gid is missing"),
    ],
)
def test_an_invalid_body_is_refused_with_the_line_and_the_reason(kind: str, wire: bytes, reason: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        parse(kind, wire)
    assert reason in str(caught.value)
    assert caught.value.permanent
    assert isinstance(caught.value, InvalidMessage)


Call = tuple[str, tuple[Any, ...], dict[str, Any]]


@given(jobs)
def test_arguments_and_message_of_a_job_give_the_same_job(job: Job) -> None:
    assert job_of(kind_of(job), (), asdict(job)) == job
    outgoing = message(job, "cover-art-archive", "an id")
    assert parse(outgoing.routing_key, outgoing.body) == job


def test_a_message_is_musicbrainz_s_with_an_id() -> None:
    outgoing = message(Index(A), "cover-art-archive", "an id")
    assert (outgoing.exchange, outgoing.routing_key, outgoing.body) == ("cover-art-archive", "index", A.encode())
    assert (outgoing.headers, outgoing.content_type, outgoing.content_encoding) == ({}, None, None)
    assert outgoing.properties == {"message_id": "an id"}


@pytest.mark.parametrize(
    ("call", "job"),
    [
        (("index", (A.upper(),), {}), Index(A)),
        (("index", (uuid.UUID(A),), {}), Index(A)),
        (("move", ("1", A), {"new_gid": B, "suffix": "pdf"}), Move(1, A, B, "pdf")),
        (("delete", (A,), {}), Delete(A)),
        (("delete", (), {"gid": A, "id": 7, "suffix": "png"}), Delete(A, 7, "png")),
    ],
)
def test_a_call_may_omit_defaults_and_use_positions(call: Call, job: Job) -> None:
    assert job_of(*call) == job


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (("index", (A.encode(),), {}), "expected a UUID"),
        (("index", (A,), {"gid": B}), "multiple values for argument 'gid'"),
        (("index", (A,), {"mbid": B}), "unexpected keyword argument 'mbid'"),
        (("move", (1, A), {}), r"move\(id, old_gid, new_gid, suffix='jpg'\): .* 'new_gid'"),
        (("move", (True, A, B), {}), "image 'True'"),
        (("move", (1, "x", B), {}), "old_gid 'x'"),
        (("move", (1, A, B, "jpg", 5), {}), "too many positional arguments"),
    ],
)
def test_an_invalid_call_is_refused_with_the_argument_and_the_reason(call: Call, reason: str) -> None:
    with pytest.raises(InvalidJob, match=reason) as raised:
        job_of(*call)
    assert raised.value.permanent


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(UnknownType, match="'rename': expected index, move, delete"):
        parse("rename", A.encode())


GID = "76df3287-6cda-33eb-8e9a-044b5e15ffdd"
IMAGE = Image(829521842, "png", "Björk, “front”", 17462565, True, True, False, ("Front", "Medium"))

images = st.builds(
    Image,
    id=st.integers(1, 2**63 - 1),
    suffix=st.sampled_from(["jpg", "png", "gif", "pdf"]),
    comment=st.text(),
    edit=st.integers(1, 2**31 - 1),
    approved=st.booleans(),
    front=st.booleans(),
    back=st.booleans(),
    types=st.lists(st.text()).map(tuple),
)


def test_a_releases_listing_is_these_bytes() -> None:
    caa = f"https://coverartarchive.org/release/{GID}/829521842"
    assert listing(COVER_ART, Entity(GID, (IMAGE,))).decode() == (
        '{"images": [{"approved": true, "back": false, "comment": "Bj\\u00f6rk, \\u201cfront\\u201d", '
        '"edit": 17462565, "front": true, "id": 829521842, '
        f'"image": "{caa}.png", "thumbnails": {{"1200": "{caa}-1200.jpg", '
        f'"250": "{caa}-250.jpg", "500": "{caa}-500.jpg", "large": "{caa}-500.jpg", "small": "{caa}-250.jpg"}}, '
        f'"types": ["Front", "Medium"]}}], "release": "https://musicbrainz.org/release/{GID}"}}'
    )


def test_an_events_listing_names_the_event_and_has_no_back() -> None:
    eaa = f"https://eventartarchive.org/event/{GID}/829521842"
    document = json.loads(listing(EVENT_ART, Entity(GID, (IMAGE,))))
    assert document["event"] == f"https://musicbrainz.org/event/{GID}"
    assert "release" not in document
    assert "back" not in document["images"][0]
    assert document["images"][0]["image"] == f"{eaa}.png"
    assert document["images"][0]["thumbnails"]["small"] == f"{eaa}-250.jpg"


@given(st.sampled_from(PROJECTS), st.lists(images, max_size=3))
def test_any_listing_is_json_with_sorted_keys_the_given_order_and_https(project: Project, of: list[Image]) -> None:
    data = listing(project, Entity(GID, tuple(of)))
    document = json.loads(data)
    assert json.dumps(document, sort_keys=True).encode("ascii") == data
    assert [(image["id"], image["comment"], image["types"]) for image in document["images"]] == [
        (image.id, image.comment, list(image.types)) for image in of
    ]
    for image in document["images"]:
        assert type(image["id"]) is int
        assert all(url.startswith("https://") for url in (image["image"], *image["thumbnails"].values()))
