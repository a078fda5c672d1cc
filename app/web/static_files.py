"""Static files, whose addresses have a version: browsers keep such a file for a year and never ask again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FOLDER = Path(__file__).parent / "static"
IMMUTABLE = "public, max-age=31536000, immutable"

#: What is served under a name: a style sheet with the one that it extends, so that a page needs one request.
_EXTENDED: Final = {"ops.css": "style.css"}
_CONTENTS: Final[Mapping[str, bytes]] = {
    path.name: b"".join((FOLDER / name).read_bytes() for name in (_EXTENDED.get(path.name), path.name) if name)
    for path in sorted(FOLDER.iterdir())
    if path.is_file()
}
_VERSIONS = {name: hashlib.blake2b(content, digest_size=6).hexdigest() for name, content in _CONTENTS.items()}


def static_path(name: str) -> str:
    """Return the path of a static file with its version, which changes with its content."""
    return f"/static/{name}?v={_VERSIONS[name]}"


def icon_uri() -> str:
    """Return the icon as a data URI, which needs no request."""
    return f"data:image/svg+xml,{quote(_CONTENTS['icon.svg'])}"


class VersionedFiles(StaticFiles):
    """Serves the static files."""

    def __init__(self) -> None:
        super().__init__(directory=FOLDER)

    def file_response(
        self, full_path: os.PathLike[str] | str, stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """Return the file. Only its address with the present version may be kept."""
        response = super().file_response(full_path, stat_result, scope, status_code)
        name = Path(full_path).name
        if name in _EXTENDED:
            response = Response(_CONTENTS[name], status_code, media_type="text/css")
        if scope["query_string"] == f"v={_VERSIONS.get(name, '')}".encode():
            response.headers["Cache-Control"] = IMMUTABLE
        return response
