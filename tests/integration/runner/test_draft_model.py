"""A draft model in the runner's process: same answers, memory as measured, and never a reason to fail."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.spec.layout import FlashAttention, Layout
from common.spec.sampling import Sampling
from runner.core.model.model_files import ModelFiles
from runner.engine.llama.context import EngineFailure
from runner.engine.llama.draft_model import DraftModel
from runner.measure import measure
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.devices import loaded, spread
from tests.integration.runner.harness import GREEDY, Harness, running
from tests.limited_device import limited_device
from tools.model_zoo import build
from tools.model_zoo.catalogue import recipe_of
from tools.model_zoo.recipe import WeightType

pytestmark = pytest.mark.behaviour("B-154")

PROMPT = "The weather is cold in the morning."
SEEDED = Sampling(temperature=0.9, seed=11, top_k=40, top_p=0.95)
TOKENS = 40
LAYOUT = Layout(slots=4, context_tokens=512, batch_tokens=512, threads=1)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in Q8_0: with fused attention over less than 512 cells, inputs are computed alike."""
    recipe = replace(recipe_of("dense"), name="dense_q8", weights=WeightType.Q8_0)
    return build(recipe, tmp_path_factory.mktemp("target"))


def drafting(target: Path, draft: Path, **options: Any) -> Any:
    return running(
        target, draft=draft, flash_attention=FlashAttention.ON, sampling_threads=0, drafted_tokens=3, **options
    )


def by_model(harness: Harness) -> tuple[int, int]:
    drafted = sum(report.drafted_by_model for report in harness.reports)
    return drafted, sum(report.accepted_by_model for report in harness.reports)


@pytest.mark.parametrize("right", [True, False], ids=["its own weights", "others"])
async def test_a_draft_model_guesses_and_answers_stay_the_same(target: Path, zoo: Zoo, right: bool) -> None:
    async with drafting(target, target if right else zoo("dense"), slots=2) as harness:
        for sampling in (GREEDY, SEEDED):
            asked: dict[str, Any] = {"sampling": sampling, "max_tokens": TOKENS, "top_logprobs": 2}
            plain = await harness.ask(PROMPT, **asked, cache_prompt=False)
            harness.reports.clear()
            answer = await harness.ask(PROMPT, **asked, cache_prompt=False, speculates=True)
            assert answer.ids == plain.ids
            assert [one.logprobs for one in answer.tokens] == [one.logprobs for one in plain.tokens]
            drafted, accepted = by_model(harness)
            assert drafted > 0
            if sampling is GREEDY:
                assert accepted > 0.8 * drafted if right else accepted < 0.2 * drafted


async def test_several_sequences_and_full_contexts_are_followed(target: Path) -> None:
    async with drafting(target, target, slots=3, context=64) as harness:
        streams = [
            harness.open(f"{PROMPT} {number}", max_tokens=150, ignore_eos=True, shift=True, speculates=True)
            for number in range(3)
        ]
        for stream in streams:
            assert len((await harness.read(stream)).ids) == 150
        drafted, accepted = by_model(harness)
        assert 0 < accepted < drafted


async def test_a_loaded_draft_model_holds_what_was_measured(target: Path, zoo: Zoo) -> None:
    plain = measure(ModelFiles(model=target), LAYOUT)
    measured = measure(ModelFiles(model=target, draft=(zoo("dense"),)), LAYOUT)
    assert measured.host.projector_bytes > zoo("dense").stat().st_size * 0.9
    assert measured.host.weights_bytes == plain.host.weights_bytes
    async with running(target, draft=zoo("dense")) as harness:
        assert harness.model is not None
        assert harness.model.memory is not None
        assert abs(measured.host.projector_bytes - harness.model.memory.host.projector_bytes) < 1024 * 1024
        weights_bytes = harness.model.memory.host.weights_bytes
        # A CPU with AMX packs Q8_0 into more bytes than the file has, and only the measurement counts them.
        assert 0.9 * measured.host.weights_bytes < weights_bytes <= measured.host.weights_bytes
    async with running(target) as harness:
        assert harness.model is not None
        assert harness.model.memory is not None
        assert harness.model.memory.host.weights_bytes == weights_bytes


def test_a_draft_model_is_on_the_first_device_of_its_targets_node(target: Path, zoo: Zoo) -> None:
    with limited_device(mib=256) as first, limited_device(mib=256) as second:
        layout = spread((first, second), (4, 5))
        measured = measure(ModelFiles(model=target, draft=(zoo("dense"),)), layout)
        assert [bool(device.projector_bytes) for device in measured.devices] == [True, False]
        with loaded(target, layout, drafted=3, draft=(zoo("dense"),)) as driver:
            assert driver.model is not None
            assert driver.model.memory is not None
            (_, held), _ = driver.model.memory.devices
            assert held.projector_bytes == measured.devices[0].projector_bytes
            assert first.used_bytes() == held.total_bytes
            driver.ask(PROMPT, max_tokens=TOKENS, speculates=True)
            assert sum(report.drafted_by_model for report in driver.listener.reports) > TOKENS
            assert first.used_bytes() == held.total_bytes, "guesses take no memory that was not counted"
        lent = replace(layout, devices=(replace(layout.devices[0], node_id="other"), layout.devices[1]))
        measured = measure(ModelFiles(model=target, draft=(zoo("dense"),)), lent)
        assert [bool(device.projector_bytes) for device in measured.devices] == [False, True]


def test_a_draft_model_that_does_not_fit_beside_its_target_is_done_without(target: Path, zoo: Zoo) -> None:
    with limited_device(mib=256) as device:
        layout = spread((device,), (9,))
        (counted,) = measure(ModelFiles(model=target), layout).devices
        alone_bytes = counted.weights_bytes + counted.cache_bytes + counted.graph_bytes
        device.take(leave_bytes=alone_bytes)
        with loaded(target, layout, drafted=3, draft=(zoo("dense"),)) as driver:
            assert driver.model.speculation is not None
            assert driver.model.speculation.draft_off_reason
            assert len(driver.ask(PROMPT, max_tokens=5, speculates=True).ids) == 5


@pytest.mark.parametrize(
    ("name", "words"),
    [("swa", "tokenizer is of another type"), ("hybrid", "recurrent state"), ("embed_mean", "embeddings")],
)
async def test_a_draft_model_that_cannot_guess_is_done_without(target: Path, zoo: Zoo, name: str, words: str) -> None:
    assert measure(ModelFiles(model=target, draft=(zoo(name),)), LAYOUT).host.projector_bytes == 0
    async with drafting(target, zoo(name)) as harness:
        assert harness.model is not None
        assert harness.model.speculation is not None
        assert words in harness.model.speculation.draft_off_reason
        assert harness.model.memory is not None
        assert harness.model.memory.host.projector_bytes == 0
        assert len((await harness.ask(PROMPT, max_tokens=5, ignore_eos=True, speculates=True)).ids) == 5


async def test_a_recurrent_target_has_a_draft_model_if_its_state_goes_back(zoo: Zoo) -> None:
    target = zoo("hybrid_rollback")
    for rollback_tokens in (0, 3):
        async with drafting(target, zoo("dense"), slots=2, rollback_tokens=rollback_tokens) as harness:
            layout = replace(LAYOUT, slots=2, rollback_tokens=rollback_tokens, flash_attention=FlashAttention.ON)
            measured = measure(ModelFiles(model=target, draft=(zoo("dense"),)), layout)
            assert harness.model is not None
            assert harness.model.memory is not None
            assert harness.model.speculation is not None
            assert bool(harness.model.speculation.draft_off_reason) == (rollback_tokens == 0)
            assert harness.model.memory.host.cache_bytes == measured.host.cache_bytes
            assert harness.model.memory.host.projector_bytes == measured.host.projector_bytes
            await harness.ask(PROMPT, max_tokens=TOKENS, ignore_eos=True, speculates=True)
            drafted, accepted = by_model(harness)
            assert (drafted > accepted) == (rollback_tokens > 0)


async def test_a_draft_model_that_fails_is_switched_off_and_the_answer_goes_on(
    target: Path, zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with drafting(target, zoo("dense")) as harness:
        asked: dict[str, Any] = {"max_tokens": TOKENS, "ignore_eos": True}
        plain = await harness.ask(PROMPT, **asked)

        def fail(*_: object, **__: object) -> int:
            raise EngineFailure("broken")

        monkeypatch.setattr(DraftModel, "evaluate", fail)
        assert (await harness.ask(PROMPT, speculates=True, **asked)).ids == plain.ids
        assert sum(report.drafters_off for report in harness.reports) == 1
