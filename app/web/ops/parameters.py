"""Parameters that several subjects of operations have in paths, queries and bodies."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from pydantic import Field

from app.web.models import MAX_DOMAIN

Domain = Annotated[
    str, Path(min_length=1, max_length=MAX_DOMAIN, description="The site's domain.", examples=["docs.example.org"])
]
Url = Annotated[
    str, Field(min_length=1, max_length=2_000, description="A page.", examples=["https://docs.example.org/a"])
]
OfSite = Annotated[str, Field(max_length=MAX_DOMAIN, description="The site, if it is not the host of the URL.")]
PageNumber = Annotated[int, Query(ge=1)]
