"""Display names of sites, read from their objects."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.sites.names import SiteNames
from app.sites.site import Site
from app.sites.stored import add_site
from tests.support.stores import folder_store

pytestmark = pytest.mark.unit


def test_names_are_those_of_the_site_objects_that_have_one(tmp_path: Path) -> None:
    store = folder_store(tmp_path / "store")
    add_site(store, Site(domain="docs.example", name="The Manuals"))
    add_site(store, Site(domain="other.example"))
    names = SiteNames(store)
    names.read()
    assert names() == {"docs.example": "The Manuals"}
