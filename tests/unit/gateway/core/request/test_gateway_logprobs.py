"""Log-probabilities in the clients' forms."""

import math

import pytest

from common.errors import InvalidRequest
from gateway.core.request.answers import GeneratedToken, TokenAlternative
from gateway.core.request.logprobs import check_top_logprobs, legacy_logprobs, logprob_entries

HALF = GeneratedToken(id=1, piece=b"\xc3", logprob=-0.5, top=(TokenAlternative(id=2, piece=b"x", logprob=-math.inf),))
PLAIN = GeneratedToken(id=3, piece=b" hi", logprob=-1.25)


@pytest.mark.behaviour("B-111")
@pytest.mark.parametrize("value", [-1, 21, 2000])
def test_out_of_range_has_its_text(value: int) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_top_logprobs(value)
    assert caught.value.message == "top_logprobs must be between 0 and 20"


@pytest.mark.parametrize("value", [0, 20])
def test_the_limits_pass(value: int) -> None:
    assert check_top_logprobs(value) == value


def test_entries_keep_the_bytes_of_half_characters_and_write_infinity_as_a_number() -> None:
    assert logprob_entries([HALF]) == [
        {
            "token": "\ufffd",
            "logprob": -0.5,
            "bytes": [0xC3],
            "top_logprobs": [{"token": "x", "logprob": -9999.0, "bytes": [0x78]}],
        }
    ]


def test_tokens_without_a_value_have_no_entry() -> None:
    assert logprob_entries([GeneratedToken(id=1, piece=b"x")]) == []


def test_the_legacy_form_has_columns_and_offsets() -> None:
    assert legacy_logprobs([PLAIN, PLAIN], text_offset=10) == {
        "tokens": [" hi", " hi"],
        "token_logprobs": [-1.25, -1.25],
        "top_logprobs": [{}, {}],
        "text_offset": [10, 13],
    }
