"""API keys: their form, what is kept of them, what they open."""

import string
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import PermissionDenied, PunaError, RateLimited, Unauthenticated
from common.rate_limits import FAILURES_PER_MINUTE, FailedAttempts
from common.spec.bands import Band
from gateway.core.keys.key_file import read_keys, write_keys
from gateway.core.keys.keys import (
    ALL_SCOPES,
    BASE62,
    Key,
    KeyRing,
    Quota,
    Scope,
    check_scope,
    digest_of,
    key_text,
    parse_key,
    presented_key,
)

PEPPER = b"pepper"
KEY_ID, SECRET = "Abcd1234", "s" * 43
TEXT = key_text(KEY_ID, SECRET)
KEY = Key(
    id=KEY_ID, digest=digest_of(PEPPER, SECRET), owner="ada", tenant="lab", scopes=frozenset({Scope.INFER, Scope.EMBED})
)
base62 = st.text(BASE62, min_size=1)


def ring(*keys: Key) -> KeyRing:
    return KeyRing.of(PEPPER, keys)


@given(key_id=st.text(BASE62, min_size=8, max_size=8), secret=st.text(BASE62, min_size=43, max_size=43))
def test_a_key_is_read_as_it_was_written(key_id: str, secret: str) -> None:
    parts = parse_key(key_text(key_id, secret))
    assert parts is not None
    assert (parts.id, parts.secret) == (key_id, secret)


@given(place=st.integers(5, len(TEXT) - 1), letter=st.sampled_from(string.printable))
def test_one_wrong_letter_shows_offline(place: int, letter: str) -> None:
    mistyped = TEXT[:place] + letter + TEXT[place + 1 :]
    assert (parse_key(mistyped) is None) == (mistyped != TEXT)


@given(st.text())
def test_other_text_is_no_key(text: str) -> None:
    assert parse_key(text) is None
    with pytest.raises(Unauthenticated):
        ring(KEY).find(text, now_unix_s=0)


def test_the_right_key_is_found() -> None:
    assert ring(KEY).find(TEXT, now_unix_s=0) is KEY


@pytest.mark.parametrize(
    "kept",
    [
        replace(KEY, id="Zzzz9999"),
        replace(KEY, digest=digest_of(PEPPER, "t" * 43)),
        replace(KEY, digest=digest_of(b"other pepper", SECRET)),
        replace(KEY, expires_unix_s=1000),
        replace(KEY, revoked_unix_s=900),
    ],
)
def test_unknown_wrong_expired_and_revoked_keys_open_nothing_and_look_the_same(kept: Key) -> None:
    with pytest.raises(Unauthenticated, match=r"^Incorrect API key provided$"):
        ring(kept).find(TEXT, now_unix_s=1000)


def test_two_keys_of_an_owner_are_good_at_once() -> None:
    second = replace(KEY, id="Next5678", digest=digest_of(PEPPER, "n" * 43))
    keys = ring(KEY, second)
    assert keys.find(TEXT, now_unix_s=0) is KEY
    assert keys.find(key_text("Next5678", "n" * 43), now_unix_s=0) is second


def test_nothing_that_is_printed_has_the_secret() -> None:
    assert SECRET not in repr(parse_key(TEXT))
    assert "pepper" not in repr(ring(KEY))
    assert SECRET not in write_keys([KEY])


@pytest.mark.parametrize(
    ("authorizations", "api_keys"),
    [(["Bearer k"], []), (["bearer  k"], []), ([], ["k"]), (["Bearer k"], ["k"]), ([], [" k "])],
)
def test_a_key_comes_in_either_header(authorizations: list[str], api_keys: list[str]) -> None:
    assert presented_key(authorizations, api_keys) == "k"


@pytest.mark.parametrize(
    ("authorizations", "api_keys"),
    [
        ([], []),
        (["Basic k"], []),
        (["Bearer"], []),
        (["k"], []),
        (["Bearer k", "Bearer k"], []),
        ([], ["k", "k"]),
        (["Bearer k"], ["other"]),
        (["Basic x"], ["k"]),
    ],
)
def test_none_twice_malformed_and_different_are_refused(authorizations: list[str], api_keys: list[str]) -> None:
    with pytest.raises(Unauthenticated):
        presented_key(authorizations, api_keys)


def test_a_scope_opens_itself_only() -> None:
    for scope in ALL_SCOPES:
        key = replace(KEY, scopes=frozenset({scope}))
        check_scope(key, scope, "10.0.0.1")
        for other in ALL_SCOPES - {scope}:
            with pytest.raises(PermissionDenied):
                check_scope(key, other, "10.0.0.1")


@pytest.mark.parametrize(
    ("address", "is_inside"),
    [("10.1.2.3", True), ("::ffff:10.1.2.3", True), ("10.2.0.1", False), ("fd00::1", True), ("", False)],
)
def test_a_key_is_bound_to_its_networks(address: str, is_inside: bool) -> None:
    assert replace(KEY, networks=("10.1.0.0/16", "fd00::/8")).may_come_from(address) is is_inside


def test_a_key_is_bound_to_its_models_in_every_spelling() -> None:
    key = replace(KEY, models=("Demo",))
    assert key.may_use("demo:latest")
    assert key.may_use("registry.ollama.ai/library/demo")
    assert not key.may_use("demo:other")
    assert not key.may_use("no name at all!")


numbers = st.none() | st.integers(1, 10**9)
keys = st.builds(
    Key,
    id=st.text(BASE62, min_size=8, max_size=8),
    digest=st.text("0123456789abcdef", min_size=64, max_size=64),
    owner=st.text(BASE62, min_size=1, max_size=20),
    tenant=st.text(BASE62, min_size=1, max_size=20),
    scopes=st.frozensets(st.sampled_from(Scope)),
    models=st.lists(st.sampled_from(["demo", "llama3:8b"]), unique=True).map(tuple),
    networks=st.lists(st.sampled_from(["10.0.0.0/8", "::1/128"]), unique=True).map(tuple),
    band=st.sampled_from(Band),
    weight=st.integers(1, 100),
    quota=st.builds(Quota, requests_per_minute=numbers, tokens_per_minute=numbers, concurrency=numbers),
    created_unix_s=st.integers(0, 2**33),
    expires_unix_s=numbers,
    revoked_unix_s=numbers,
)


@given(st.lists(keys, unique_by=lambda key: key.id, max_size=4))
def test_the_file_keeps_keys_whole(written: list[Key]) -> None:
    assert list(read_keys(write_keys(written))) == written


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"infer"', '"everything"'),
        ('"version": 1', '"version": 2'),
        ('"weight": 1', '"weight": 0'),
        ('"concurrency": null', '"concurrency": true'),
        ('"networks": []', '"networks": ["10.0.0"]'),
        ('"band": "normal"', '"band": "vip"'),
        ('"expires"', '"expiry"'),
        ('"models": []', '"models": "demo"'),
    ],
)
def test_a_file_that_says_something_else_is_refused_whole(before: str, after: str) -> None:
    text = write_keys([KEY])
    assert before in text
    with pytest.raises(ValueError, match=r"keys"):
        read_keys(text.replace(before, after))


def test_an_id_must_not_stand_twice() -> None:
    with pytest.raises(ValueError, match="twice"):
        read_keys(write_keys([KEY, KEY]))


def test_failures_of_an_address_are_counted_and_those_of_others_are_not() -> None:
    failures, error = FailedAttempts(), Unauthenticated("no")

    def answers(address: str, count: int, now_s: float) -> list[type[PunaError]]:
        return [type(failures.refusal(error, address, now_s)) for _ in range(count)]

    assert set(answers("a", FAILURES_PER_MINUTE, 0.0)) == {Unauthenticated}
    assert answers("a", 1, 0.0) == [RateLimited]
    assert answers("b", 1, 0.0) == [Unauthenticated]
    assert answers("a", 2, 60 / FAILURES_PER_MINUTE) == [Unauthenticated, RateLimited]


def test_an_address_that_fails_and_fails_is_not_forgotten_for_others_that_fail_once() -> None:
    failures, error = FailedAttempts(), Unauthenticated("no")
    for _ in range(FAILURES_PER_MINUTE):
        failures.refusal(error, "loud", 0.0)
    for number in range(4095):
        failures.refusal(error, f"a{number}", 0.0)
    assert isinstance(failures.refusal(error, "loud", 0.0), RateLimited)
    for number in range(4095):
        failures.refusal(error, f"b{number}", 0.0)
    assert isinstance(failures.refusal(error, "loud", 0.0), RateLimited), "it failed since, so others were forgotten"


def test_addresses_that_fail_take_a_bounded_memory() -> None:
    failures, error = FailedAttempts(), Unauthenticated("no")
    for _ in range(FAILURES_PER_MINUTE + 1):
        failures.refusal(error, "first", 0.0)
    for number in range(4096):
        failures.refusal(error, f"a{number}", 0.0)
    assert failures.refusal(error, "first", 0.0) is error, "forgotten: the one that failed longest ago"


def test_what_any_key_may_do_needs_no_scope_but_the_right_network() -> None:
    bound = replace(KEY, scopes=frozenset(), networks=("10.0.0.0/8",))
    check_scope(bound, None, "10.1.2.3")
    with pytest.raises(PermissionDenied, match="address"):
        check_scope(bound, None, "192.168.0.1")
    with pytest.raises(PermissionDenied, match="address"):
        check_scope(replace(bound, scopes=ALL_SCOPES), Scope.INFER, "192.168.0.1")


def test_a_key_that_names_no_models_is_for_all_of_them() -> None:
    assert KEY.may_use("demo")
    assert KEY.may_use("no name at all!")


def test_a_key_that_was_found_is_held_until_it_is_revoked_or_expires() -> None:
    assert ring(KEY).holds(KEY_ID, now_unix_s=0)
    assert not ring(replace(KEY, revoked_unix_s=1)).holds(KEY_ID, now_unix_s=2)
    assert not ring(replace(KEY, expires_unix_s=2)).holds(KEY_ID, now_unix_s=2)
    assert not ring().holds(KEY_ID, now_unix_s=0)


def test_every_limit_of_a_key_survives_its_file() -> None:
    quota = Quota(requests_per_minute=1, tokens_per_minute=2, concurrency=3, tokens_per_day=4)
    limited = replace(KEY, quota=quota, context_tokens=5, weight=6)
    assert read_keys(write_keys([limited])) == (limited,)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"context_tokens": null', '"context_tokens": 3'),
        ('"context_tokens": null', f'"context_tokens": {2**31}'),
        ('"weight": 1', '"weight": 1001'),
        ('"tokens_per_day": null', '"tokens_per_day": 0'),
        ('"tokens_per_day": null', '"tokens_per_day": 1.5'),
        ('"owner": "ada"', '"owner": "ada!"'),
        (f'"id": "{KEY_ID}"', f'"id": "{KEY_ID}9"'),
        ('"tenant": "lab"', '"tenant": ""'),
        ('"scopes": [', '"scopes": [1, '),
    ],
)
def test_values_beyond_their_ranges_and_names_with_other_letters_are_no_key(before: str, after: str) -> None:
    text = write_keys([KEY])
    assert before in text
    with pytest.raises(ValueError, match=r"keys\[0\]"):
        read_keys(text.replace(before, after))
