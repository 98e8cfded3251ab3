"""The engine for pooled models, against llama.cpp's own high-level class and against itself."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

from common.errors import InternalError, UnsupportedCapability
from common.spec.layout import FlashAttention
from runner.core.sequence.requests import GenerationRequest, TokenizedPrompt
from runner.engine.contract.pooling import PooledReport
from runner.engine.pooled.pooled_context import PooledContext
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.pooled_harness import (
    EMBEDDERS,
    Oracle,
    PooledHarness,
    Vector,
    cosine_distance,
    poison,
    pooled,
)

TEXTS = [f"Text number {index} is about trains and bread." for index in range(64)]


@pytest.mark.behaviour("B-22", "B-93", "B-153")
@pytest.mark.parametrize("model", [*EMBEDDERS, "reranker"])
def test_each_kind_of_pooling_equals_llama_cpp_pythons_own_class(zoo: Zoo, model: str) -> None:
    with pooled(zoo(model), flash_attention=FlashAttention.OFF) as engine:
        inputs = [engine.tokens(text) for text in ("Bread", *TEXTS[:4], " ".join(TEXTS[:9]))]
        ours = [engine.compute([tokens])[0] for tokens in inputs]
    oracle = Oracle(zoo(model), 512)
    try:
        for tokens, vector in zip(inputs, ours, strict=True):
            expected = oracle.vector(tokens, len(vector))
            np.testing.assert_allclose(vector, expected, rtol=1e-5, atol=1e-5 * float(np.abs(expected).max()))
    finally:
        oracle.close()


@pytest.mark.parametrize("model", EMBEDDERS)
def test_the_frame_is_what_the_tokenizer_itself_adds(zoo: Zoo, model: str) -> None:
    with pooled(zoo(model)) as engine:
        ours = [list(engine.tokens(text)) for text in TEXTS[:3]]
    plain = llama_cpp.Llama(str(zoo(model)), vocab_only=True, verbose=False)
    try:
        assert ours == [plain.tokenize(text.encode()) for text in TEXTS[:3]]
    finally:
        plain.close()


@pytest.mark.behaviour("B-92")
@pytest.mark.parametrize("model", EMBEDDERS)
def test_64_short_inputs_are_one_call_and_equal_one_by_one(zoo: Zoo, model: str) -> None:
    with pooled(zoo(model), context=1024) as engine:
        inputs = [engine.tokens(text) for text in TEXTS]
        together = engine.compute(inputs)
        assert engine.decode_calls == 1
        alone = [engine.compute([tokens])[0] for tokens in inputs]
        assert engine.decode_calls == 65
        # Kernels of other batch shapes round differently; the direction stays, and inputs differ far more.
        distances = [cosine_distance(one, other) for one, other in zip(together, alone, strict=True)]
        assert max(distances) <= 1e-5
        assert min(cosine_distance(one, other) for one, other in pairwise(together)) > 100 * max(distances)


@pytest.mark.behaviour("B-92")
def test_ranking_scores_are_equal_together_and_one_by_one(zoo: Zoo) -> None:
    with pooled(zoo("reranker"), context=1024) as engine:
        inputs = [engine.tokens(text) for text in TEXTS]
        together = np.array([vector[0] for vector in engine.compute(inputs)])
        alone = np.array([engine.compute([tokens])[0][0] for tokens in inputs])
        assert np.abs(together - alone).max() <= 0.005 * np.abs(alone).max()


@pytest.mark.behaviour("B-40")
@pytest.mark.parametrize("model", EMBEDDERS)
def test_the_same_input_twice_is_computed_twice_and_equal(zoo: Zoo, model: str) -> None:
    with pooled(zoo(model)) as engine:
        tokens = engine.tokens("The same text.")
        first, other, second = (engine.compute([ids])[0] for ids in (tokens, engine.tokens("Something else."), tokens))
        assert np.array_equal(first, second)
        assert not np.array_equal(first, other)
        evaluated = [report.prompt_tokens for report in engine.reports if report.decode_calls]
        assert evaluated[0] == evaluated[2] == len(tokens)


@pytest.mark.behaviour("B-90")
@pytest.mark.parametrize("model", [*EMBEDDERS, "reranker"])
def test_an_input_as_long_as_the_context_fits_one_call(zoo: Zoo, model: str) -> None:
    with pooled(zoo(model), context=1024) as engine:
        long = [*engine.tokens("word " * 600)][:1024]
        long += [5] * (1024 - len(long))
        assert np.isfinite(engine.compute([long])[0]).all()
        assert engine.decode_calls == 1


@pytest.mark.behaviour("B-90")
def test_inputs_that_do_not_fit_together_are_spread_over_calls(zoo: Zoo) -> None:
    with pooled(zoo("embed_mean"), context=256) as engine:
        engine.compute([[5] * 100] * 7)
        assert engine.decode_calls == 4
        engine.compute([[5]] * 200)
        assert engine.decode_calls == 4 + 4


@pytest.mark.behaviour("B-03")
def test_results_are_told_before_the_next_call_begins(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    trace: list[str] = []
    compute, stepped = PooledContext.compute, PooledHarness.stepped

    def traced_compute(self: PooledContext, inputs: Sequence[Sequence[int]]) -> list[Vector]:
        trace.append(f"call of {len(inputs)}")
        return compute(self, inputs)

    def traced_step(self: PooledHarness, report: PooledReport) -> None:
        if report.vectors:
            trace.append(f"told {len(report.vectors)}")
        stepped(self, report)

    with pooled(zoo("embed_mean")) as engine:
        monkeypatch.setattr(PooledContext, "compute", traced_compute)
        monkeypatch.setattr(PooledHarness, "stepped", traced_step)
        engine.compute([[5] * 4] * 200)
    assert trace == ["call of 64", "told 64"] * 3 + ["call of 8", "told 8"]


def test_a_long_request_does_not_keep_a_short_one_waiting(zoo: Zoo) -> None:
    with pooled(zoo("embed_mean")) as engine:
        tokens = engine.tokens(TEXTS[0])
        with engine.standing():
            long = engine.submit([tokens] * 1000)
            short = engine.submit([tokens])
        engine.end(long)
        order = [end.request_id for report in engine.reports for end in report.ends]
        assert order == [short, long]
        calls_before_short = next(
            sum(report.decode_calls for report in engine.reports[: index + 1])
            for index, report in enumerate(engine.reports)
            if any(end.request_id == short for end in report.ends)
        )
        assert calls_before_short <= 2


@pytest.mark.behaviour("B-12")
def test_a_cancelled_request_ends_before_the_next_call(zoo: Zoo) -> None:
    with pooled(zoo("embed_mean")) as engine:
        request = engine.submit([engine.tokens(TEXTS[0])] * 5000)
        with engine.told:
            assert engine.told.wait_for(lambda: request in engine.vectors, 60)
            engine.engine.cancel(request)
            calls = engine.decode_calls
        assert engine.end(request).error is None
        assert len(engine.vectors[request]) < 5000
        assert engine.decode_calls <= calls + 2
        assert engine.reports[-1].slots_busy == 0
        # Unknown and finished ones are ignored.
        engine.engine.cancel(request)
        assert len(engine.compute([engine.tokens("Still there")])) == 1


def test_a_stop_ends_every_request(zoo: Zoo) -> None:
    with pooled(zoo("embed_mean")) as engine:
        requests = [engine.submit([engine.tokens(TEXTS[0])] * 5000) for _ in range(3)]
    assert set(engine.ends) == set(requests)


def test_busy_and_waiting_are_told_with_every_call(zoo: Zoo) -> None:
    with pooled(zoo("embed_mean"), context=256) as engine:
        with engine.standing():
            requests = [engine.submit([[5] * 200]) for _ in range(4)]
        for request in requests:
            engine.end(request)
        seen = {(report.slots_busy, report.waiting) for report in engine.reports}
        assert {busy for busy, _ in seen} == {0, 1}
        assert max(waiting for _, waiting in seen) >= 1
        assert (engine.reports[-1].slots_busy, engine.reports[-1].waiting) == (0, 0)


@pytest.mark.parametrize("model", ["embed_mean", "embed_last"])
def test_an_invalid_number_is_an_error_and_spoils_no_neighbour(zoo: Zoo, tmp_path: Path, model: str) -> None:
    good, bad_token = [7, 8, 9], 20
    with pooled(zoo(model)) as engine:
        (expected,) = engine.compute([good])
    with pooled(poison(zoo(model), tmp_path / "poisoned.gguf", bad_token)) as engine:
        with engine.standing():
            filler = engine.submit([[5] * 512] * 3)  # so that the others meet in one call
            neighbours = [engine.submit([good]), engine.submit([good])]
            bad = engine.submit([good, [7, bad_token, 9]])
        assert engine.end(filler).error is None
        error = engine.end(bad).error
        assert isinstance(error, InternalError)
        assert error.message == "the model gave an invalid number for an input"
        for neighbour in neighbours:
            assert engine.end(neighbour).error is None
            assert cosine_distance(engine.vectors[neighbour][0], expected) <= 1e-5
        assert max(report.batch_sequences for report in engine.reports) > 1
        # Nothing of it is left behind.
        assert cosine_distance(engine.compute([good])[0], expected) <= 1e-5


def test_generation_is_refused(zoo: Zoo) -> None:
    with pooled(zoo("embed_mean")) as engine, pytest.raises(UnsupportedCapability) as refused:
        engine.engine.submit(1, GenerationRequest(prompt=TokenizedPrompt((1,))))
    assert refused.value.message == "this model does not support generation"


def test_the_load_reports_what_the_largest_call_takes(zoo: Zoo) -> None:
    with pooled(zoo("embed_mean"), context=1024) as engine:
        assert engine.model is not None
        assert (engine.model.layout.batch_tokens, engine.model.layout.slots) == (1024, 64)
        assert engine.model.memory is not None
        outputs = 1024 * (engine.engine.vocabulary.size + 64) * 4
        assert engine.model.memory.host.cache_bytes == outputs
        before = resident_bytes()
        engine.compute([[5] * 1024])
        # The load touched the output buffer already; the graph's buffer is reserved, and touched by the first call.
        assert resident_bytes() - before < engine.model.memory.host.graph_bytes + 2 * 1024 * 1024


def resident_bytes() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024
