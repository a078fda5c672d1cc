"""The paths of the web application that several modules name."""

from __future__ import annotations

#: What pages of other origins may use: the JSON API by `fetch`, the search box script by an element.
API, SEARCH_BOX = "/api/v1/", "/static/search-box.js"
#: Addresses of the operations page and of the operators' API, which no page of another origin may read, begin so.
OPS_PAGES, OPS_API = "/ops", "/api/v1/ops"
#: The path to which the page sends a password, and that of the event stream of pages of operations.
LOGIN_PATH, LIVE_PATH = "/ops/login", "/ops/live"
#: The path to which the search page reports a click, by POST without a body.
CLICKS_PATH = "/clicks"
#: Paths that search, and paths that count against an address's rate limit; the search page only with a query or a site.
SEARCH_PATHS = frozenset({"/", "/api/v1/search"})
LIMITED_PATHS = SEARCH_PATHS | {"/suggest", "/api/v1/suggest", CLICKS_PATH}


def is_for_operators(path: str) -> bool:
    """Return whether an address is one of the operations page or of the operators' API."""
    return is_ops_page(path) or path == OPS_API or path.startswith(f"{OPS_API}/")


def is_ops_page(path: str) -> bool:
    """Return whether an address is one of the operations page."""
    return path == OPS_PAGES or path.startswith(f"{OPS_PAGES}/")
