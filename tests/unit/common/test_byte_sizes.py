"""Sizes mean the same wherever people write them."""

import pytest

from cli.core.constraint_words import constraints_of_words
from common.byte_sizes import BYTES_MAX, parse_byte_size
from common.errors import InvalidRequest
from gateway.http.endpoint.fields import validated
from gateway.http.puna.bodies import ConstraintsBody
from runner.core.devices.device_settings import parse_amounts
from scheduler.core.values.constraint_fields import parse_constraints

SIZES = [
    ("100", 100),
    ("7B", 7),
    ("8GB", 8 * 10**9),
    ("8gb", 8 * 10**9),
    ("8 GiB", 8 << 30),
    ("8G", 8 << 30),
    ("8g", 8 << 30),
    ("8Gi", 8 << 30),
    ("1.5GB", 1_500_000_000),
    ("1.5gib", 3 << 29),
    ("2kB", 2000),
    ("2KiB", 2048),
    ("500MB", 500_000_000),
    ("500M", 500 << 20),
    ("1TiB", 1 << 40),
    ("1TB", 10**12),
]
NO_SIZES = ["8X", "8GX", "GB", "8 G B", "-1", "1e9", "nan", "inf", "８GB", "9" * 400, "9999999999TiB"]


@pytest.mark.parametrize(("text", "count"), SIZES)
def test_a_size_means_the_same_everywhere(text: str, count: int) -> None:
    assert parse_byte_size(text) == count
    in_a_command = constraints_of_words([f"max_bytes=GPU-0:{text}"])
    assert in_a_command == {"max_bytes": {"GPU-0": count}}
    over_http = validated(ConstraintsBody, {"max_bytes": {"GPU-0": text}})
    assert over_http.max_bytes == {"GPU-0": count}
    in_a_file = parse_constraints({"max_bytes": {"GPU-0": text}})
    assert in_a_file.max_bytes == (("GPU-0", count),)
    in_a_setting = parse_amounts(f"GPU-0={text}")
    assert in_a_setting["GPU-0"].of(total_bytes=1) == count


@pytest.mark.parametrize("text", NO_SIZES)
def test_what_is_no_size_is_refused_everywhere(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_byte_size(text)
    with pytest.raises(ValueError, match="is no size"):
        constraints_of_words([f"max_bytes={text}"])
    with pytest.raises(InvalidRequest, match="a size such as"):
        validated(ConstraintsBody, {"max_bytes": {"*": text}})
    with pytest.raises(InvalidRequest, match="a size such as"):
        parse_constraints({"max_bytes": text})
    with pytest.raises(ValueError, match="is no size"):
        parse_amounts(text)


@pytest.mark.parametrize("value", [0, 5, BYTES_MAX])
def test_a_whole_number_is_bytes(value: int) -> None:
    assert parse_byte_size(value) == value


@pytest.mark.parametrize("value", [-1, 1.5, True, None, [], BYTES_MAX + 1])
def test_nothing_else_is(value: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_byte_size(value)
