"""Versions of Redis and Valkey in which clients can run code."""

import pytest

from common.redis.versions import is_vulnerable, server_version


@pytest.mark.parametrize(
    ("version", "vulnerable"),
    [
        *(("6.2.14", True), ("6.2.20", False), ("7.0.15", True), ("7.2.5", True), ("7.2.11", False), ("7.4.5", True)),
        *(("8.0.4", False), ("8.2.1", True), ("8.2.2", False), ("8.4.0", False), ("9.0.0", False), ("7.4", False)),
    ],
)
def test_a_redis_before_the_patch_of_its_series_is_vulnerable(version: str, vulnerable: bool) -> None:
    assert is_vulnerable({"redis_version": version}) is vulnerable


@pytest.mark.parametrize(
    ("version", "vulnerable"), [("7.2.10", True), ("8.1.4", False), ("8.1.3", True), ("9.1.2", False)]
)
def test_a_valkey_is_judged_by_its_own_version(version: str, vulnerable: bool) -> None:
    info = {"redis_version": "7.2.4", "valkey_version": version}
    assert is_vulnerable(info) is vulnerable
    assert server_version(info) == f"Valkey {version}"


def test_a_server_that_does_not_tell_its_version_is_not_refused() -> None:
    assert not is_vulnerable({})
    assert server_version({}) == "Redis of unknown version"
