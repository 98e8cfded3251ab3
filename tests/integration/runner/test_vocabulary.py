"""The tables of a vocabulary, against the engine itself."""

import ctypes
from collections.abc import Iterator

import llama_cpp.llama_cpp as llama
import pytest

from runner.engine.bindings.library import start_engine
from runner.engine.llama import vocabulary as vocabulary_module
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


def test_tables_are_those_of_the_engine(pointer: int) -> None:
    vocabulary = Vocabulary(pointer)
    ids = range(llama.llama_vocab_n_tokens(pointer))
    buffer = ctypes.create_string_buffer(4096)
    assert vocabulary.size == len(vocabulary.pieces) == len(ids)
    for token_id in ids:
        length = llama.llama_token_to_piece(pointer, token_id, buffer, len(buffer), 0, True)
        assert vocabulary.pieces[token_id] == buffer.raw[:length]
    assert vocabulary.control == {number for number in ids if llama.llama_vocab_get_attr(pointer, number) & 9}
    assert vocabulary.end_tokens == {number for number in ids if llama.llama_vocab_is_eog(pointer, number)}
    assert vocabulary.end_tokens <= vocabulary.control


def test_a_piece_that_is_longer_than_the_buffer_is_whole(pointer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Vocabulary(pointer).pieces
    assert max(map(len, usual)) > 1
    monkeypatch.setattr(vocabulary_module, "_PIECE_BYTES", 1)
    assert Vocabulary(pointer).pieces == usual
