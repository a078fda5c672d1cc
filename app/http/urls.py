"""URLs as logs, errors and headers may show them: without user names and passwords."""

from __future__ import annotations

import re

import ada_url

_PREFIX = re.compile(r"\s*(?:[a-z][a-z0-9+.-]*:(?=[/\\]))?[/\\]*", re.I)
_END_OF_AUTHORITY = re.compile(r"[/?#\\]")
_IN_TEXT = re.compile(r"(?<=//)[^/?#\\\s'\"]*@")


def without_credentials(url: str) -> str:
    """Return a URL with `***` in place of its user name and password.

    In a URL that is invalid or of another scheme than http and https, all up to the last "@" counts as credentials.
    """
    if "@" not in url:
        return url
    try:
        parsed = ada_url.URL(url)
        valid = parsed.protocol in ("http:", "https:")
    except ValueError:
        valid = False
    if valid and not parsed.username and not parsed.password:
        return url
    prefix = str(_PREFIX.match(url)[0])  # type: ignore[index]  # It matches the empty text, too.
    rest = url[len(prefix) :]
    end = _END_OF_AUTHORITY.search(rest) if valid else None
    authority = rest[: end.start()] if end else rest
    if "@" not in authority:  # White space that parsers drop was within it.
        authority = rest
    return f"{prefix}***@{authority.rpartition('@')[2]}{rest[len(authority) :]}"


def without_credentials_in(text: str) -> str:
    """Return a text with `***` in place of the user name and password of each URL in it."""
    return _IN_TEXT.sub("***@", text) if "@" in text else text
