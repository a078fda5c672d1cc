"""Groups of identical pages: where chains and rings of `canonical` lead, and what following them costs."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.pack.groups import targets_of

pytestmark = pytest.mark.unit

KEYS = st.sampled_from("abcdefgh")


def target_by_definition(key: str, canonical: dict[str, str]) -> str:
    """Follow one page alone, for more steps than there are pages: one that is then still under way is in a ring."""
    at = key
    for _ in range(len(canonical) + 2):
        following = canonical.get(at, "")
        if following in ("", at):
            return at
        at = following
    return key


@given(st.dictionaries(KEYS, st.one_of(st.just(""), KEYS)))
@example({"a": "b", "b": "c", "c": "b", "d": "a"})
@example({"a": "a", "b": "a", "c": "elsewhere"})
def test_each_page_has_the_target_that_its_own_chain_leads_to(canonical: dict[str, str]) -> None:
    assert targets_of(canonical) == {key: target_by_definition(key, canonical) for key in canonical}


class Counted(dict[str, str]):
    """A mapping that counts its lookups."""

    lookups = 0

    def get(self, key: str, default: str = "") -> str:  # type: ignore[override]
        self.lookups += 1
        return super().get(key, default)


@pytest.mark.parametrize("ring", [False, True])
@pytest.mark.parametrize("backwards", [False, True])
def test_a_chain_of_all_pages_of_a_site_is_followed_once(ring: bool, backwards: bool) -> None:
    number = 20_000
    keys = range(number)[:: -1 if backwards else 1]
    canonical = Counted({f"/{key}": f"/{(key + 1) % number if ring else key + 1}" for key in keys})
    targets = targets_of(canonical)
    assert canonical.lookups <= 2 * number
    assert all(target == (key if ring else f"/{number}") for key, target in targets.items())
