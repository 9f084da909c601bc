"""The text of a store in the cache's list names all that distinguishes stores."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.data.cache.blocks import StoreIdentity

NAMES = st.text("abcz019-._", min_size=1)
OPTIONAL = st.one_of(st.just(""), NAMES)
STORES = st.builds(
    StoreIdentity,
    st.sampled_from(["s3", "gs", "az"]),
    st.one_of(st.just(""), NAMES.map(lambda host: f"http://{host}:9000/a=b")),
    OPTIONAL,
    OPTIONAL,
    NAMES,
)


@given(STORES, STORES)
def test_a_store_is_found_from_its_text_and_no_two_have_the_same(one: StoreIdentity, other: StoreIdentity) -> None:
    assert StoreIdentity.parse(one.text) == one
    assert (one.text == other.text) == (one == other)


@pytest.mark.parametrize("text", ["", "bucket", "s3://bucket port=1", "s3://bucket  endpoint=x"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="does not name a store"):
        StoreIdentity.parse(text)
