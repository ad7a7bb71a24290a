"""What opens which tree: no field's content can be taken for another's."""

from __future__ import annotations

from dataclasses import fields, replace

from hypothesis import given
from hypothesis import strategies as st

from kvcluster.index.identity import CacheIdentity

TEXT = st.text(max_size=12)
IDENTITIES = st.builds(CacheIdentity, TEXT, TEXT, TEXT, TEXT, TEXT, TEXT)


@given(IDENTITIES, IDENTITIES)
def test_two_identities_have_one_root_only_if_they_are_equal(one: CacheIdentity, other: CacheIdentity) -> None:
    assert (one.root == other.root) == (one == other)
    assert len(one.root) == 32


def test_an_adapter_named_like_another_tenants_salt_opens_nothing() -> None:
    salted = CacheIdentity("m", "f32", "token-major", salt="secret")
    named = CacheIdentity("m", "f32", "token-major", adapter="secret")
    assert salted.root != named.root


@given(TEXT.filter(bool))
def test_content_that_moves_from_one_field_to_the_next_is_another_identity(text: str) -> None:
    whole = CacheIdentity(**{field.name: "" for field in fields(CacheIdentity)})
    roots = {replace(whole, **{field.name: text}).root for field in fields(CacheIdentity)}
    assert len(roots) == len(fields(CacheIdentity))


def test_an_identity_is_the_same_in_every_version() -> None:
    root = CacheIdentity("m", "float32", "token-major").root
    assert root.hex() == "f2be587d85d2eb284aac67be37e3a9188f6e58f5c4aeac7efa194ec2d206244e"


def test_half_a_character_is_an_identity_too() -> None:
    assert CacheIdentity("m", "d", "l", salt="\ud800").root != CacheIdentity("m", "d", "l", salt="\ud801").root
