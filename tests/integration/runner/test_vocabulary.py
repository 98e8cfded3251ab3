"""The pieces of a vocabulary, against the engine itself."""

import ctypes
from collections.abc import Iterator
from random import Random

import llama_cpp.llama_cpp as llama
import pytest

from runner.engine.bindings.library import start_engine
from runner.engine.llama.vocabulary import Vocabulary
from tests.integration.runner.conftest import Zoo


@pytest.fixture
def pointer(zoo: Zoo) -> Iterator[int]:
    """The vocabulary of a model whose weights are not read."""
    start_engine()
    parameters = llama.llama_model_default_params()
    parameters.vocab_only = True
    model = llama.llama_model_load_from_file(str(zoo("dense")).encode(), parameters)
    yield llama.llama_model_get_vocab(model)
    llama.llama_model_free(model)


def test_pieces_are_those_of_the_engine_in_whatever_order_they_are_asked_for(pointer: int) -> None:
    vocabulary = Vocabulary(pointer)
    order = list(range(vocabulary.size))
    Random(3).shuffle(order)
    buffer = ctypes.create_string_buffer(4096)
    for token_id in order:
        length = llama.llama_token_to_piece(pointer, token_id, buffer, len(buffer), 0, True)
        assert vocabulary.pieces[token_id] == buffer.raw[:length]
    assert list(vocabulary.pieces) == list(Vocabulary(pointer).pieces)
    assert len(vocabulary.pieces) == vocabulary.size == llama.llama_vocab_n_tokens(pointer)
    marked = {number for number in order if llama.llama_vocab_get_attr(pointer, number) & 9}
    assert vocabulary.control == marked
    assert vocabulary.end_tokens == {number for number in order if llama.llama_vocab_is_eog(pointer, number)}
    assert vocabulary.end_tokens <= marked


@pytest.mark.parametrize("past", [-1, 0])
def test_a_token_that_does_not_exist_never_reaches_the_engine(pointer: int, past: int) -> None:
    vocabulary = Vocabulary(pointer)
    with pytest.raises(IndexError):
        vocabulary.pieces[past if past < 0 else vocabulary.size]
