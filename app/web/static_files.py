"""Static files, whose addresses have a version: browsers keep such a file for a year and never ask again."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FOLDER = Path(__file__).parent / "static"
IMMUTABLE = "public, max-age=31536000, immutable"

_VERSIONS = {
    path.name: hashlib.blake2b(path.read_bytes(), digest_size=6).hexdigest()
    for path in sorted(FOLDER.iterdir())
    if path.is_file()
}


def static_path(name: str) -> str:
    """Return the path of a static file with its version, which changes with its content."""
    return f"/static/{name}?v={_VERSIONS[name]}"


class VersionedFiles(StaticFiles):
    """Serves the static files."""

    def __init__(self) -> None:
        super().__init__(directory=FOLDER)

    def file_response(
        self, full_path: os.PathLike[str] | str, stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """Return the file. Only its address with the present version may be kept."""
        response = super().file_response(full_path, stat_result, scope, status_code)
        if scope["query_string"] == f"v={_VERSIONS.get(Path(full_path).name, '')}".encode():
            response.headers["Cache-Control"] = IMMUTABLE
        return response
