"""The archive's stand-in: strict where the archive is, since a lax one would let wrong requests pass."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.servers.archive import ACCESS_KEY, SECRET_KEY, ArchiveServer, slow_down

pytestmark = pytest.mark.integration

LOW = {"authorization": f"LOW {ACCESS_KEY}:{SECRET_KEY}"}
COLLECTION = {"x-archive-meta-collection": "coverartarchive"}
MAKE = {"x-archive-auto-make-bucket": "1"}


@pytest.fixture
def server() -> Iterator[ArchiveServer]:
    """Yield an archive without items."""
    with ArchiveServer() as running:
        yield running


def call(server: ArchiveServer, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> tuple[int, str]:
    response = requests.request(method, server.at(path), headers=headers, data=body, timeout=10)
    return response.status_code, response.text


def fetched(server: ArchiveServer, path: str) -> Any:
    return requests.get(server.at(path), timeout=10).json()


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        (COLLECTION | MAKE, 403, "AccessDenied"),
        (LOW | {"authorization": "LOW a:b"} | COLLECTION | MAKE, 403, "AccessDenied"),
        (LOW | MAKE, 403, "AccessDenied"),
        (LOW | MAKE | {"x-archive-meta-collection": "another"}, 403, "AccessDenied"),
        (LOW | COLLECTION, 404, "NoSuchBucket"),
        (LOW | COLLECTION | MAKE | {"x-amz-copy-source": "/mbid-none/a.jpg"}, 404, "NoSuchBucket"),
        (LOW | COLLECTION | MAKE | {"x-amz-copy-source": "/mbid-b/none.jpg"}, 404, "NoSuchKey"),
    ],
)
def test_a_put_that_the_archive_would_refuse_is_refused(
    server: ArchiveServer, headers: dict[str, str], status: int, code: str
) -> None:
    server.upload("mbid-b", "b.jpg", b"picture")
    answered, text = call(server, "PUT", "/mbid-a/a.jpg", headers, b"x")
    assert (answered, f"<Code>{code}</Code>" in text) == (status, True)
    assert server.item("mbid-a") is None


def test_thumbnails_come_with_an_image_and_go_only_with_a_cascade(server: ArchiveServer) -> None:
    thumbnails = {f"a_thumb{side}.jpg" for side in (250, 500, 1200)}
    assert call(server, "PUT", "/mbid-a/a.png", LOW | COLLECTION | MAKE, b"x")[0] == 200
    assert set(server.files("mbid-a")) == {"a.png"} | thumbnails
    assert call(server, "DELETE", "/mbid-a/a.png", LOW)[0] == 204
    assert set(server.files("mbid-a")) == thumbnails
    assert call(server, "DELETE", "/mbid-a/a.png", LOW | {"x-archive-cascade-delete": "1"})[0] == 204
    assert server.files("mbid-a") == {}


def test_metadata_has_checksums_and_tells_derived_files_and_dark_items(server: ArchiveServer) -> None:
    assert fetched(server, "/metadata/mbid-a") == {}
    server.upload("mbid-a", "a.jpg", b"x")
    files = {file["name"]: file for file in fetched(server, "/metadata/mbid-a")["files"]}
    assert files["a.jpg"]["md5"] == hashlib.md5(b"x").hexdigest()
    assert (files["a.jpg"]["source"], files["a_thumb250.jpg"]["source"]) == ("original", "derivative")
    server.darken("mbid-a")
    dark = fetched(server, "/metadata/mbid-a")
    assert (dark["is_dark"], "files" in dark) == (True, False)


def test_the_limit_can_be_asked_for(server: ArchiveServer) -> None:
    assert fetched(server, "/?check_limit=1&accesskey=k&bucket=mbid-a")["over_limit"] == 0
    server.over_limit = True
    assert fetched(server, "/?check_limit=1&accesskey=k&bucket=mbid-a")["over_limit"] == 1


def test_a_fault_is_for_its_method_and_path_and_is_used_up(server: ArchiveServer) -> None:
    server.upload("mbid-a", "a.jpg", b"x")
    server.faults.add(slow_down(), method="GET", path="/mbid-a/*", times=2)
    assert call(server, "GET", "/metadata/mbid-a", {})[0] == 200
    assert [call(server, "GET", "/mbid-a/a.jpg", {})[0] for _ in range(3)] == [503, 503, 200]
    server.faults.add(slow_down())
    server.faults.clear()
    assert call(server, "GET", "/mbid-a/a.jpg", {})[0] == 200
