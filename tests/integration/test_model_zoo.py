"""Every model of the zoo, loaded and run by the real engine."""

import ctypes
import json
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import gguf
import llama_cpp.llama_cpp as llama
import llama_cpp.mtmd_cpp as mtmd
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.integration.model_zoo_engine import Model, Vision, loaded
from tools.model_zoo import ZOO, Damage, build, build_pair, damage, shape
from tools.model_zoo.tokens.tokenizer import corpus

EMBEDDING_MODELS = ("embed_mean", "embed_cls", "embed_last")
RERANKERS = ("reranker",)
PROJECTORS = tuple(name for name, recipe in ZOO.items() if recipe.vision)
PAIRS = tuple(name for name, recipe in ZOO.items() if recipe.projector)
TEXT_MODELS = tuple(name for name in ZOO if name not in (*EMBEDDING_MODELS, *RERANKERS, *PROJECTORS))

PROMPT = "The weather is cold in the morning. How do I bake bread? Remember the rules of the house."
POOLING_MEAN, POOLING_CLS, POOLING_LAST = 1, 2, 3
ROPE_NONE, ROPE_NORMAL, ROPE_NEOX, ROPE_MROPE = -1, 0, 2, 8


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with all tiny models."""
    directory = tmp_path_factory.mktemp("zoo")
    for name in ZOO:
        build(name, directory)
    return directory


def file_of(zoo: Path, name: str) -> Path:
    return zoo / f"{name}.gguf"


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_a_text_model_gives_finite_logits_that_depend_on_every_token(zoo: Path, name: str) -> None:
    with loaded(file_of(zoo, name)) as model:
        ids = model.tokenize(PROMPT)
        logits = model.logits(ids)
        assert np.isfinite(logits).all()
        assert 1 < logits.std() < 6
        for position in (1, len(ids) // 2, len(ids) - 1):
            other = [*ids[:position], ids[position] + 1, *ids[position + 1 :]]
            assert np.abs(model.logits(other) - logits).max() > 0.005 * np.abs(logits).max()


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_greedy_text_is_varied_and_does_not_end_at_once(zoo: Path, name: str) -> None:
    with loaded(file_of(zoo, name)) as model:
        model.decode(model.tokenize(PROMPT))
        chosen = []
        for _ in range(64):
            token = int(model.last_logits().argmax())
            assert not llama.llama_vocab_is_eog(model.vocabulary, token)
            chosen.append(token)
            model.decode([token])
    assert len(set(chosen)) > 16


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_logits_do_not_depend_on_how_a_prompt_is_cut_into_batches(zoo: Path, name: str) -> None:
    with loaded(file_of(zoo, name)) as model:
        ids = model.tokenize(PROMPT)
        whole = model.logits(ids)
        model.logits(ids[:7])
        for token in ids[7:]:
            model.decode([token])
        assert np.abs(model.last_logits() - whole).max() < 0.01 * np.abs(whole).max()


@dataclass(frozen=True)
class Memory:
    """The engine's facts about a model's memory, and the result of cutting off a sequence's tail."""

    recurrent: bool = False
    hybrid: bool = False
    window_tokens: int = 0
    rope: int = ROPE_NORMAL
    can_shift: bool = True
    tail_can_go: bool = True


MEMORIES = {
    "dense": Memory(),
    "dense_wide_head": Memory(),
    "tied": Memory(),
    "moe": Memory(rope=ROPE_NEOX),
    "swa": Memory(window_tokens=64, rope=ROPE_NEOX, can_shift=False),
    "recurrent": Memory(recurrent=True, rope=ROPE_NONE, tail_can_go=False),
    "hybrid": Memory(hybrid=True, rope=ROPE_NONE, tail_can_go=False),
    "hybrid_rollback": Memory(hybrid=True, rope=ROPE_NEOX, tail_can_go=False),
    "rope_freqs": Memory(),
    "rope_factors": Memory(rope=ROPE_NEOX),
    "mrope": Memory(rope=ROPE_MROPE, can_shift=False),
    "vision": Memory(),
    "vision_swa": Memory(window_tokens=512, rope=ROPE_NEOX, can_shift=False),
}


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_a_text_model_has_the_memory_that_its_shape_promises(zoo: Path, name: str) -> None:
    with loaded(file_of(zoo, name), swa_full=False) as model:
        model.decode(model.tokenize(PROMPT))
        last = llama.llama_memory_seq_pos_max(model.memory, 0)
        seen = Memory(
            recurrent=llama.llama_model_is_recurrent(model.model),
            hybrid=llama.llama_model_is_hybrid(model.model),
            window_tokens=llama.llama_model_n_swa(model.model),
            rope=llama.llama_model_rope_type(model.model),
            can_shift=llama.llama_memory_can_shift(model.memory),
            tail_can_go=llama.llama_memory_seq_rm(model.memory, 0, last, -1),
        )
    assert seen == MEMORIES[name]


def test_a_state_with_snapshots_can_be_rolled_back(zoo: Path) -> None:
    with loaded(file_of(zoo, "hybrid_rollback"), n_rs_seq=4) as model:
        ids = model.tokenize(PROMPT)
        expected = model.logits(ids)
        model.logits([*ids[:-1], 300, 301, 302])
        assert llama.llama_memory_seq_rm(model.memory, 0, len(ids) - 1, -1)
        model.decode(ids[-1:])
        assert np.abs(model.last_logits() - expected).max() < 0.005 * np.abs(expected).max()


@pytest.mark.parametrize("name", [name for name in TEXT_MODELS if name not in {"swa", "vision_swa"}])
def test_tokenizing_and_detokenizing_gives_the_text_back(zoo: Path, name: str) -> None:
    with loaded(file_of(zoo, name)) as model:
        ids = model.tokenize(corpus(), special=False)
        assert model.detokenize(ids) == corpus()
        assert len(ids) < len(corpus().encode()) / 2
        assert max(ids) < model.tokens


@pytest.mark.parametrize("name", ["swa", "vision_swa"])
def test_gemma_text_comes_back_without_an_added_space(zoo: Path, name: str) -> None:
    with loaded(file_of(zoo, name)) as model:
        ids = model.tokenize(corpus(), special=False)
        assert b"".join(model.piece(token) for token in ids).decode() == corpus()
        assert model.tokenize("a")[0] == llama.llama_vocab_bos(model.vocabulary)


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_every_byte_has_a_token_and_special_tokens_are_one_token(zoo: Path, name: str) -> None:
    with loaded(file_of(zoo, name)) as model:
        pieces = {model.piece(token) for token in range(model.tokens)}
        assert {bytes([byte]) for byte in range(256)} <= pieces
        attributes = [llama.llama_vocab_get_attr(model.vocabulary, token) for token in range(model.tokens)]
        controls = [token for token, mask in enumerate(attributes) if mask & llama.LLAMA_TOKEN_ATTR_CONTROL]
        assert len(controls) >= 2
        for token in controls:
            assert token in model.tokenize(model.piece(token).decode())
            assert model.piece(token, special=False) == b""
        ends = [token for token in controls if llama.llama_vocab_is_eog(model.vocabulary, token)]
        assert llama.llama_vocab_eos(model.vocabulary) in ends


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_a_chat_template_arrives_as_it_was_written(zoo: Path, name: str) -> None:
    with loaded(file_of(zoo, name)) as model:
        template = llama.llama_model_chat_template(model.model, None)
    expected = ZOO[name].chat_template
    assert template == (expected.encode() if expected else None)


def test_a_wide_head_is_not_embedding_over_heads(zoo: Path) -> None:
    with loaded(file_of(zoo, "dense_wide_head")) as model:
        head = int(model.meta("llama.attention.key_length") or 0)
        heads = llama.llama_model_n_head(model.model)
        assert heads * head == 2 * llama.llama_model_n_embd(model.model)


def tensor_names(path: Path) -> set[str]:
    return {tensor.name for tensor in gguf.GGUFReader(path).tensors}


def test_a_tied_model_stores_its_token_table_once(zoo: Path) -> None:
    assert "output.weight" in tensor_names(file_of(zoo, "dense"))
    assert "output.weight" not in tensor_names(file_of(zoo, "tied"))


def test_experts_are_merged_into_one_tensor_per_role(zoo: Path) -> None:
    with loaded(file_of(zoo, "moe")) as model:
        assert model.meta("qwen3moe.expert_count") == "8"
        assert model.meta("qwen3moe.expert_used_count") == "2"
    assert {"blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight"} <= tensor_names(file_of(zoo, "moe"))


def test_the_context_length_chooses_the_rotary_factors(zoo: Path) -> None:
    def difference(name: str) -> float:
        with loaded(file_of(zoo, name), n_ctx=2048) as model:
            ids = model.tokenize(PROMPT)
            short = model.logits(ids)
            long = model.logits(ids, context=model.new_context(n_ctx=8192))
            return float(np.abs(long - short).max() / np.abs(short).max())

    assert difference("dense") < 0.001
    assert difference("rope_factors") > 0.01


def test_stored_frequency_factors_are_in_the_file_once(zoo: Path) -> None:
    assert "rope_freqs.weight" in tensor_names(file_of(zoo, "rope_freqs"))
    names = tensor_names(file_of(zoo, "rope_factors"))
    assert {"rope_factors_long.weight", "rope_factors_short.weight"} <= names


def cosine(left: NDArray[np.float32], right: NDArray[np.float32]) -> float:
    return float(left @ right / np.linalg.norm(left) / np.linalg.norm(right))


@pytest.mark.parametrize(
    ("name", "pooling"), [("embed_mean", POOLING_MEAN), ("embed_cls", POOLING_CLS), ("embed_last", POOLING_LAST)]
)
def test_an_embedding_model_pools_as_it_says_and_tells_texts_apart(zoo: Path, name: str, pooling: int) -> None:
    with loaded(file_of(zoo, name), embeddings=True, n_ctx=512, n_batch=512) as model:
        assert llama.llama_pooling_type(model.context) == pooling
        length = llama.llama_model_n_embd_out(model.model)
        embed = partial(model.pooled, length=length)
        first = embed(model.tokenize("How do I bake bread?"))
        again = embed(model.tokenize("How do I bake bread?"))
        other = embed(model.tokenize("The train leaves at seven."))
        assert np.isfinite(first).all()
        assert np.allclose(first, again, rtol=1e-5)
        assert cosine(first, other) < 0.95


def test_a_bert_text_is_framed_and_known_words_have_pieces(zoo: Path) -> None:
    with loaded(file_of(zoo, "embed_mean"), embeddings=True, n_ctx=512, n_batch=512) as model:
        ids = model.tokenize("The weather, Übung and 42 umbrellas!")
        assert ids[0] == llama.llama_vocab_bos(model.vocabulary)
        assert ids[-1] == llama.llama_vocab_sep(model.vocabulary)
        unknown = int(model.meta("tokenizer.ggml.unknown_token_id") or -1)
        assert unknown not in ids
        assert model.tokenize("ꙮ")[1:-1] == [unknown]
        assert model.detokenize(ids[1:-1]).strip().startswith("the weather")


def test_a_reranker_gives_one_score_that_depends_on_question_and_document(zoo: Path) -> None:
    with loaded(file_of(zoo, "reranker"), embeddings=True, n_ctx=512, n_batch=512) as model:
        assert llama.llama_model_n_cls_out(model.model) == 1

        def score(question: str, document: str) -> float:
            frame = [*model.tokenize(question), *model.tokenize(document)[1:]]
            return float(model.pooled(frame, 1)[0])

        scores = [
            score(question, document)
            for question in ("How do I bake bread?", "When does the train leave?")
            for document in ("Mix flour and water.", "At seven o'clock.")
        ]
        assert np.isfinite(scores).all()
        assert len({round(value, 3) for value in scores}) == len(scores)


def picture(*, seed: int, width: int, height: int) -> NDArray[np.uint8]:
    """Return a picture with some structure: a gradient and a bright square."""
    canvas = np.zeros((height, width, 3), dtype=np.uint8)
    canvas[..., seed % 3] = np.linspace(0, 255, width, dtype=np.uint8)
    canvas[seed * 7 % (height // 2) :, : width // 2, (seed + 1) % 3] = 200
    return canvas


@dataclass(frozen=True)
class Sight:
    """Figures that a projector promises for a picture of 160 x 96 pixels."""

    rows: int
    positions: int
    non_causal: bool = False
    mrope: bool = False


SIGHTS = {
    "vision": Sight(rows=64, positions=64),
    "vision_swa": Sight(rows=256, positions=256, non_causal=True),
    "mrope": Sight(rows=60, positions=10, mrope=True),  # one row per 16 x 16 pixels; the longer side counts
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_vision_pair_turns_a_picture_into_rows_and_reads_them(zoo: Path, name: str) -> None:
    model_file, projector_file = build_pair(name, zoo)
    with loaded(model_file) as model:
        vision = Vision(model, projector_file)
        assert mtmd.mtmd_support_vision(vision.context)
        marker = mtmd.mtmd_default_marker().decode()
        chunks = vision.chunks(f"Look: {marker} What is it?", picture(seed=1, width=160, height=96))
        images = [c for c in chunks if mtmd.mtmd_input_chunk_get_type(c) == mtmd.MTMD_INPUT_CHUNK_TYPE_IMAGE]
        assert len(images) == 1
        rows = vision.rows(images[0])
        seen = Sight(
            rows=len(rows),
            positions=mtmd.mtmd_input_chunk_get_n_pos(images[0]),
            non_causal=mtmd.mtmd_decode_use_non_causal(vision.context, images[0]),
            mrope=mtmd.mtmd_decode_use_mrope(vision.context),
        )
        assert seen == SIGHTS[name]
        assert np.isfinite(rows).all()
        assert rows.std() > 0.1

        logits, position = vision.logits(chunks)
        assert np.isfinite(logits).all()
        assert position == sum(mtmd.mtmd_input_chunk_get_n_pos(chunk) for chunk in chunks)
        other, _ = vision.logits(vision.chunks(f"Look: {marker} What is it?", picture(seed=2, width=160, height=96)))
        assert np.abs(other - logits).max() > 0.01 * np.abs(logits).max()


def test_an_image_of_a_gemma_pair_stands_between_its_markers(zoo: Path) -> None:
    model_file, projector_file = build_pair("vision_swa", zoo)
    with loaded(model_file) as model:
        vision = Vision(model, projector_file)
        before, _, after = vision.chunks(
            f"Look: {mtmd.mtmd_default_marker().decode()}", picture(seed=1, width=64, height=64)
        )
        assert text_of(model, before).endswith(b"<start_of_image>")
        assert text_of(model, after).startswith(b"<end_of_image>")


def text_of(model: Model, chunk: object) -> bytes:
    count = ctypes.c_size_t()
    tokens = mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(count))
    return b"".join(model.piece(tokens[index]) for index in range(count.value))


def test_every_model_of_the_zoo_is_covered_here() -> None:
    covered = {*MEMORIES, *EMBEDDING_MODELS, *RERANKERS, *SIGHTS, *(ZOO[name].projector for name in SIGHTS)}
    assert covered == set(ZOO)


def test_the_57m_shape_has_its_size_and_speaks(tmp_path: Path) -> None:
    with loaded(build(shape("57m"), tmp_path)) as model:
        assert 55e6 < llama.llama_model_n_params(model.model) < 59e6
        assert model.tokens == 32000
        logits = model.logits(model.tokenize(PROMPT))
        assert np.isfinite(logits).all()
        assert 1 < logits.std() < 6
        assert model.detokenize(model.tokenize(corpus(), special=False)) == corpus()


# A crash of the engine would take the test run with it, and is one of the answers that a damaged file could get.
TRY_TO_LOAD = """
import json, sys
import llama_cpp.llama_cpp as llama
quiet = llama.llama_log_callback(lambda *_: None)
llama.llama_log_set(quiet, None)
llama.llama_backend_init()
for path in sys.argv[1:]:
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    print(json.dumps({"path": path, "loaded": bool(model)}), flush=True)
"""


@pytest.fixture(scope="module")
def verdicts(zoo: Path) -> dict[str, bool]:
    """Try to load files; return success by path. A file that killed the engine is missing, and so are those after
    it."""
    whole = file_of(zoo, "tied")
    files = [whole, *(damage(whole, kind) for kind in Damage)]
    command = [sys.executable, "-c", TRY_TO_LOAD, *map(str, files)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    answers = [json.loads(line) for line in finished.stdout.splitlines()]
    return {answer["path"]: answer["loaded"] for answer in answers}


def test_the_whole_file_is_loaded(zoo: Path, verdicts: dict[str, bool]) -> None:
    assert verdicts[str(file_of(zoo, "tied"))]


@pytest.mark.parametrize("kind", Damage)
def test_the_engine_refuses_a_damaged_file_without_dying(zoo: Path, verdicts: dict[str, bool], kind: Damage) -> None:
    assert verdicts[str(damage(file_of(zoo, "tied"), kind))] is False
