"""`index.json`: byte for byte what readers of the archive expect."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.coverart.project import COVER_ART, EVENT_ART, PROJECTS, Entity, Image, Project, listing

pytestmark = pytest.mark.unit

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


def test_the_last_images_listing_is_an_empty_one() -> None:
    assert listing(COVER_ART, Entity(GID, ())) == (
        f'{{"images": [], "release": "https://musicbrainz.org/release/{GID}"}}'.encode()
    )


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
