"""Limits of the keys that a key can make, and of the records that are accepted."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import InvalidRequest, PermissionDenied
from gateway.core.keys.key_records import KeyRecords, _seal, read_cache, sealed_key, sealed_tombstone, write_cache
from gateway.core.keys.key_rules import check_gift, check_room, may_see
from gateway.core.keys.keys import ALL_SCOPES, Key, Scope

PEPPER = b"p" * 32
MAKER = Key(
    id="maker000",
    digest="0" * 64,
    owner="ada",
    tenant="blue",
    scopes=frozenset({Scope.ADMIN_KEYS, Scope.INFER}),
    models=("demo",),
    networks=("10.0.0.0/8", "2001:db8::/32"),
    expires_unix_s=1000,
)
CHILD = replace(MAKER, id="child000", scopes=frozenset({Scope.INFER}), networks=("10.1.0.0/16",), expires_unix_s=900)


def key_of(number: int) -> Key:
    return replace(MAKER, id=f"{number:08d}")


@pytest.mark.parametrize(
    "change",
    [
        {"tenant": "red"},
        {"scopes": frozenset({Scope.EMBED})},
        {"models": ()},
        {"models": ("demo", "other")},
        {"networks": ()},
        {"networks": ("0.0.0.0/0",)},
        {"networks": ("10.1.0.0/16", "192.168.0.0/16")},
        {"networks": ("::/0",)},
        {"expires_unix_s": None},
        {"expires_unix_s": 1001},
    ],
    ids=str,
)
def test_nobody_gives_more_than_they_have(change: dict[str, Any]) -> None:
    check_gift(MAKER, CHILD)
    with pytest.raises(PermissionDenied):
        check_gift(MAKER, replace(CHILD, **change))


def test_operators_see_every_tenant_and_others_their_own() -> None:
    operator = replace(MAKER, tenant="red", scopes=ALL_SCOPES)
    assert may_see(operator, CHILD)
    assert may_see(MAKER, CHILD)
    assert not may_see(replace(MAKER, tenant="red"), CHILD)


def test_two_good_keys_for_an_owner_however_many_were_good_once() -> None:
    good = [key_of(1), key_of(2)]
    gone = [replace(key_of(3), revoked_unix_s=5), replace(key_of(4), expires_unix_s=5)]
    check_room(CHILD, [*good[:1], *gone], made=9, now_unix_s=10)
    with pytest.raises(InvalidRequest, match="00000001 and 00000002"):
        check_room(CHILD, [*good, *gone], made=9, now_unix_s=10)
    with pytest.raises(InvalidRequest, match="10000"):
        check_room(CHILD, [], made=10_000, now_unix_s=10)


@given(
    made=st.lists(st.integers(0, 20)),
    revoked=st.lists(st.integers(0, 20)),
    order=st.randoms(use_true_random=False),
)
def test_records_joined_in_any_order_are_the_same(made: list[int], revoked: list[int], order: Any) -> None:
    pieces: list[tuple[dict[str, str], dict[str, str]]] = [
        ({key_of(one).id: sealed_key(PEPPER, key_of(one))}, {}) for one in made
    ]
    pieces += [({}, {key_of(one).id: sealed_tombstone(PEPPER, key_of(one).id, 7)}) for one in revoked]
    one, other = KeyRecords(PEPPER), KeyRecords(PEPPER)
    for piece in pieces:
        one.learn(*piece)
    order.shuffle(pieces)
    for piece in pieces:
        other.learn(*piece)
    other.learn(*read_cache(write_cache(one.made, one.revoked)))
    assert {key.id: key for key in one.all_keys()} == {key.id: key for key in other.all_keys()}
    assert {key.id for key in one.all_keys() if key.is_active(1)} == {key_of(n).id for n in set(made) - set(revoked)}
    assert one.missing_in(other.made, other.revoked) == ({}, {})


def test_what_is_not_sealed_with_this_pepper_or_as_this_is_nothing() -> None:
    records = KeyRecords(PEPPER)
    good = sealed_key(PEPPER, key_of(1))
    tombstone = sealed_tombstone(PEPPER, key_of(2).id, 5)
    records.learn(
        {
            "other000": sealed_key(b"q" * 32, key_of(3)),
            "wider000": good.replace("infer", "admin:cluster"),
            "moved000": good,
            "stone000": tombstone,
            "empty000": "",
        },
        {key_of(1).id: tombstone, "stone001": good, "empty001": " "},
    )
    assert records.all_keys() == []
    assert records.revoked == {}
    assert records.learn({key_of(1).id: good}, {key_of(2).id: tombstone})
    assert [key.id for key in records.all_keys()] == [key_of(1).id]


def test_a_key_may_last_as_long_as_its_maker_and_do_what_that_may() -> None:
    check_gift(MAKER, replace(MAKER, id="twin0000"))


def test_keys_of_other_owners_leave_room() -> None:
    check_room(CHILD, [replace(key_of(number), owner=f"owner{number}") for number in range(5)], made=5, now_unix_s=10)


def test_what_is_refused_is_named_and_what_is_known_is_no_news() -> None:
    records, key = KeyRecords(PEPPER), key_of(1)
    newer = sealed_key(PEPPER, key).partition(" ")[2].replace('"id"', '"hat":1,"id"')
    future = f"{_seal(PEPPER, 'made', newer)} {newer}"
    made = {key.id: sealed_key(PEPPER, key), "other000": sealed_key(b"q" * 32, key_of(3)), "newer000": future}
    revoked = {"stone000": "no seal"}
    assert records.learn(made, revoked)
    assert records.refused == {"other000", "newer000", "stone000"}
    assert not records.learn(made, revoked)
    assert records.missing_in({}, {}) == ({key.id: made[key.id]}, {})


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"version": 2, "made": {}, "revoked": {}}',
        '{"version": 1, "made": {}}',
        '{"version": 1, "made": {}, "revoked": {"a": 1}}',
        '{"version": 1, "made": {"a": null}, "revoked": {}}',
        "no json",
    ],
)
def test_what_is_no_cache_of_keys_is_not_read_in_part(text: str) -> None:
    with pytest.raises(ValueError, match=r"cache|JSON|Expecting"):
        read_cache(text)
