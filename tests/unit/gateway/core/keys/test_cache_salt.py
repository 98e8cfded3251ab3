"""The salts of tenants."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.keys.keys import cache_salt, digest_of

PEPPERS = st.binary(min_size=32, max_size=32)


@given(PEPPERS, st.text(), st.text())
def test_each_tenant_has_one_salt_and_no_two_have_the_same(pepper: bytes, one: str, other: str) -> None:
    assert cache_salt(pepper, one) == cache_salt(pepper, one)
    assert (cache_salt(pepper, one) == cache_salt(pepper, other)) == (one == other)


@given(PEPPERS, PEPPERS, st.text())
def test_a_salt_takes_the_pepper_and_is_nothing_else_that_is_made_with_it(
    pepper: bytes, other: bytes, tenant: str
) -> None:
    salt = cache_salt(pepper, tenant)
    assert (salt == cache_salt(other, tenant)) == (pepper == other)
    assert len(salt) == 32
    assert not digest_of(pepper, tenant).startswith(salt)
