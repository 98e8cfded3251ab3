"""Bytes of a model by layer, from its header."""

from runner.core.model.description import TensorFacts
from runner.core.model.model_memory import ModelMemory, describe_memory

HEADER: dict[str, object] = {
    "llama.block_count": 2,
    "llama.embedding_length": 8,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
}


def memory(*tensors: tuple[str, int, int], architecture: str = "llama", **more: object) -> ModelMemory:
    """Tensors as (name, elements, bytes); more keys of the header with "__" for dots."""
    header = HEADER | {f"llama.{name.replace('__', '.')}": value for name, value in more.items()}
    rows = [
        TensorFacts(name=name, type_name="f16", dimension_count=2, element_count=elements, size_bytes=size)
        for name, elements, size in tensors
    ]
    return describe_memory(header, rows, architecture=architecture)


def test_tensors_belong_to_their_block_the_output_comes_last_and_the_embedding_is_input() -> None:
    found = memory(
        ("token_embd.weight", 80, 100),
        ("blk.0.ffn_up.weight", 1, 10),
        ("blk.1.ffn_up.weight", 1, 20),
        ("blk.1.attn_norm.weight", 1, 2),
        ("output_norm.weight", 1, 1),
        ("output.weight", 80, 90),
        ("rope_freqs.weight", 4, 4),
    )
    assert found.layer_weights_bytes == (10, 22, 91)
    assert found.input_weights_bytes == 104


def test_an_output_that_shares_the_embedding_counts_in_full() -> None:
    assert memory(("token_embd.weight", 80, 100), ("output_norm.weight", 1, 1)).layer_weights_bytes == (0, 0, 101)


def test_a_model_that_answers_vectors_has_no_output() -> None:
    assert memory(("token_embd.weight", 80, 100), pooling_type=1).layer_weights_bytes[-1] == 0


def test_experts_are_what_may_stay_in_host_ram() -> None:
    found = memory(
        ("blk.0.ffn_up_exps.weight", 1, 40),
        ("blk.0.ffn_gate_exps.weight", 1, 30),
        ("blk.0.ffn_up_shexp.weight", 1, 5),
        expert_count=8,
        expert_used_count=2,
    )
    assert found.layer_expert_bytes == (70, 0, 0)
    assert (found.expert_count, found.expert_used_count) == (8, 2)


def test_widths_of_the_cache_come_from_the_matrices_of_each_block() -> None:
    found = memory(("blk.0.attn_k.weight", 8 * 6, 1), ("blk.0.attn_v.weight", 8 * 3, 1), ("blk.1.ffn_up.weight", 1, 1))
    assert found.layer_key_width == (6, 0)
    assert found.layer_value_width == (3, 0)


def test_fused_matrices_leave_the_widths_to_the_header() -> None:
    found = memory(("blk.0.attn_qkv.weight", 99, 1), attention__key_length=16)
    assert found.layer_key_width[0] == 2 * 16
    assert found.layer_value_width[0] == 2 * (8 // 4)


def test_a_recurrent_block_holds_its_window_and_its_state_for_each_slot() -> None:
    found = memory(
        ("blk.1.ssm_in.weight", 1, 1), ssm__inner_size=32, ssm__state_size=16, ssm__conv_kernel=4, ssm__group_count=1
    )
    assert found.layer_state_bytes == (0, 4 * (3 * (32 + 2 * 16) + 32 * 16))
