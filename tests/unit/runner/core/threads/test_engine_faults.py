"""Models that the engine's faster kernels must not compute."""

import pytest

from runner.core.threads.kernels import breaks_on_amx


@pytest.mark.parametrize(
    ("types", "breaks"),
    [
        ({"blk.0.ssm_in.weight": "f16"}, True),
        ({"blk.0.shortconv.in_proj.weight": "q8_0", "blk.1.ffn_up.weight": "f16"}, True),
        ({"blk.0.time_mix_key.weight": "f16"}, True),
        ({"blk.0.ssm_in.weight": "q8_0", "blk.0.ssm_conv1d.weight": "f32"}, True),
        ({"blk.0.ssm_in.weight": "q4_K"}, True),
        ({"blk.0.ssm_in.weight": "bf16", "blk.0.ssm_conv1d.weight": "f32"}, False),
        ({"blk.0.attn_q.weight": "f16"}, False),
        ({"blk.0.attn_k_b.weight": "f16"}, True),
        ({"blk.0.attn_k_b.weight": "q8_0"}, True),
        ({"blk.0.attn_k_b.weight": "q5_0", "blk.0.attn_v_b.weight": "q5_0", "output.weight": "f16"}, False),
        ({"altup_proj.weight": "f16"}, True),
        ({}, False),
    ],
)
def test_products_with_a_third_dimension_are_kept_from_amx(types: dict[str, str], breaks: bool) -> None:
    assert breaks_on_amx(types) is breaks
