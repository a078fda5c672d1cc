"""The archive's stand-in: strict where the archive is, since a lax one would let wrong requests pass."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests

from tests.servers.archive import ACCESS_KEY, SECRET_KEY, ArchiveServer

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
