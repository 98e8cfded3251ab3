"""Description of a model from its header."""

import pytest

from runner.core.model.description import Capability, Description, TensorFacts, Value, describe


def described(*tensors: TensorFacts, **metadata: Value) -> Description:
    keys = {name.replace("__", "."): value for name, value in metadata.items()}
    return describe(
        {"general.architecture": "llama", **keys},
        tensors,
        token_texts={1: "<s>", 2: "</s>", 9: "<|im_end|>"},
        special_token_ids=[1, 2, 9, 2],
        vocabulary_size=10,
    )


def facts(type_name: str, element_count: int, *, dimension_count: int = 2) -> TensorFacts:
    return TensorFacts(
        name="t",
        type_name=type_name,
        dimension_count=dimension_count,
        element_count=element_count,
        size_bytes=1,
    )


def test_numbers_are_read_under_the_architectures_own_keys() -> None:
    description = described(llama__context_length=4096, llama__block_count=3, gemma__block_count=9)
    assert (description.context_tokens, description.layer_count, description.embedding_length) == (4096, 3, 0)


def test_a_count_per_layer_is_described_by_its_largest() -> None:
    assert described(llama__context_length=[1, 5, 2]).context_tokens == 5


@pytest.mark.parametrize(
    ("metadata", "capabilities"),
    [
        ({}, {"completion"}),
        ({"tokenizer__chat_template": "{% if tools %}"}, {"completion", "tools"}),
        ({"tokenizer__chat_template": "x <think> y"}, {"completion", "thinking"}),
        ({"tokenizer__chat_template": "{{ enable_thinking }}"}, {"completion", "thinking"}),
        (
            {f"tokenizer__ggml__fim_{part}_token_id": 1 for part in ("pre", "suf", "mid")},
            {"completion", "insert"},
        ),
        (
            {f"tokenizer__ggml__{part}_token_id": 1 for part in ("prefix", "suffix", "middle")},
            {"completion", "insert"},
        ),
        ({"tokenizer__ggml__fim_pre_token_id": 1, "tokenizer__ggml__fim_suf_token_id": 2}, {"completion"}),
        ({"llama__pooling_type": 1}, {"embedding"}),
        ({"llama__pooling_type": 3}, {"embedding"}),
        ({"llama__pooling_type": 0}, {"completion"}),
        ({"llama__pooling_type": 4}, {"rerank"}),
        ({"general__architecture": "bert"}, {"embedding"}),
        ({"general__architecture": "clip"}, set()),
    ],
)
def test_capabilities_follow_from_the_header(metadata: dict[str, Value], capabilities: set[str]) -> None:
    assert set(described(**metadata).capabilities) == {Capability(name) for name in capabilities}


def test_the_files_own_word_for_its_mixture_comes_first() -> None:
    assert described(facts("q6_K", 10), general__file_type=15).quantization == "Q4_K_M"


def test_without_it_the_type_of_most_matrix_elements_is_named() -> None:
    tensors = [facts("q8_0", 10), facts("f16", 4), facts("f32", 1000, dimension_count=1)]
    assert described(*tensors).quantization == "Q8_0"


def test_parameters_are_all_elements() -> None:
    assert described(facts("q8_0", 10), facts("f32", 5, dimension_count=1)).parameter_count == 15


def test_special_tokens_are_texts_once_each_in_their_order() -> None:
    description = described(tokenizer__ggml__bos_token_id=1, tokenizer__ggml__eos_token_id=77)
    assert description.special_tokens == ("<s>", "</s>", "<|im_end|>")
    assert (description.bos_token, description.eos_token) == ("<s>", "")


def test_values_of_the_wrong_kind_are_not_given() -> None:
    description = described(general__name=7, llama__context_length="many", llama__block_count=-1)
    assert (description.title, description.context_tokens, description.layer_count) == ("", 0, 0)
