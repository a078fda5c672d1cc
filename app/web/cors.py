"""Which answers pages of other origins may read (the Fetch standard's CORS protocol), by a setting."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from starlette.datastructures import Headers
from starlette.types import Scope

#: What pages of other origins may use: the JSON API by `fetch`, the search box script by an element.
_API = "/api/v1/"
#: The addresses for operators, which no page of another origin may read.
OPERATOR_PATHS = frozenset({"/api/v1/explain", "/api/v1/status", "/api/v1/broken-links", "/api/v1/urls"})
SEARCH_BOX = "/static/search-box.js"
#: Fields of an answer that such a page may read.
_EXPOSED = "Retry-After, RateLimit, RateLimit-Policy"


def cors_headers(scope: Scope, origins: Collection[str]) -> Mapping[str, str]:
    """Return the header fields for other origins; empty without the setting and for all other paths.

    A GET without header fields of its own needs no preflight, so no other method is answered.
    """
    path = scope["path"]
    is_public = path == SEARCH_BOX or (path.startswith(_API) and path.rstrip("/") not in OPERATOR_PATHS)
    if not origins or not is_public:
        return {}
    fields = {"Cross-Origin-Resource-Policy": "cross-origin"}
    if "*" in origins:
        return fields | {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": _EXPOSED}
    origin = Headers(scope=scope).get("origin", "")
    if origin in origins:
        fields |= {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": _EXPOSED}
    return fields | {"Vary": "Origin"}
