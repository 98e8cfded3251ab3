"""Segments of a prompt become the tokens that one text would have become."""

from collections.abc import Iterator

import pytest

from common.errors import InvalidRequest
from common.spec.layout import Layout
from protos import runner_pb2
from runner.core.sequence.requests import TokenizedPrompt
from runner.engine.bindings.library import start_engine
from runner.engine.llama.model import Model, load_model
from runner.serve.prompts import tokenize_prompt
from tests.integration.runner.conftest import Zoo

LAYOUT = Layout(slots=1, context_tokens=64, batch_tokens=64, threads=1, cache_type_k="f16", cache_type_v="f16")


@pytest.fixture(params=["dense", "dense_wide_head", "swa"])
def model(zoo: Zoo, request: pytest.FixtureRequest) -> Iterator[Model]:
    """Byte-pair vocabularies, and SentencePiece with a leading space."""
    start_engine()
    loaded = load_model(zoo(request.param), LAYOUT, device_pointers={}, on_progress=lambda _: True)
    yield loaded
    loaded.close()


def text(content: str) -> runner_pb2.Segment:
    return runner_pb2.Segment(text=content)


def literal(content: str) -> runner_pb2.Segment:
    return runner_pb2.Segment(literal=content)


def prompt(model: Model, *segments: runner_pb2.Segment, add_bos: bool = False) -> TokenizedPrompt:
    return tokenize_prompt(segments, add_bos=add_bos, vocabulary=model.vocabulary)


def test_segments_say_the_same_as_one_text(model: Model) -> None:
    parts = ["The first line:\n", "what the user ", "wrote", " - and", " the rest.\n", "end"]
    whole = prompt(model, text("".join(parts))).inputs
    split = prompt(model, *(literal(part) if index % 2 else text(part) for index, part in enumerate(parts))).inputs
    assert model.vocabulary.detokenize(list(split)) == model.vocabulary.detokenize(list(whole))


def test_a_user_s_text_never_becomes_a_control_token(model: Model) -> None:
    names = [model.vocabulary.pieces[token_id].decode() for token_id in sorted(model.vocabulary.control)]
    names = [name for name in names if name]
    assert names
    for name in names:
        said = prompt(model, text("a"), literal(f"x{name}y"), text("b")).inputs
        assert not set(said) & set(model.vocabulary.control), name
        assert name.encode() in model.vocabulary.detokenize(list(said))


def test_boundaries_are_where_user_texts_begin(model: Model) -> None:
    said = prompt(model, text("system"), literal("first"), text("middle"), literal("second"), add_bos=True)
    places = [len(prompt(model, text("system"), add_bos=True).inputs)]
    places.append(len(prompt(model, text("system"), literal("first"), text("middle"), add_bos=True).inputs))
    assert said.boundaries == tuple(places)


def test_the_begin_token_is_added_once(model: Model) -> None:
    vocabulary = model.vocabulary
    said = prompt(model, text("Hello"), add_bos=True).inputs
    assert said.count(vocabulary.bos) == (1 if vocabulary.adds_bos else 0)
    again = prompt(model, runner_pb2.Segment(token_ids=runner_pb2.TokenIds(ids=said)), add_bos=True).inputs
    assert again == said


def test_ids_outside_of_the_vocabulary_and_empty_segments_are_refused(model: Model) -> None:
    with pytest.raises(InvalidRequest, match="outside of the vocabulary"):
        prompt(model, runner_pb2.Segment(token_ids=runner_pb2.TokenIds(ids=[model.vocabulary.size])))
    with pytest.raises(InvalidRequest, match="needs text, literal, token_ids or media"):
        prompt(model, runner_pb2.Segment())


@pytest.mark.behaviour("B-104")
def test_image_markers_are_literal_text_to_a_model_without_vision(model: Model) -> None:
    said = prompt(model, literal("[img-0] hi")).inputs
    assert model.vocabulary.detokenize(list(said)).decode().strip() == "[img-0] hi"
