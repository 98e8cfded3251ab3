"""Choices on several cores are the choices of one."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import llama_cpp.llama_cpp as llama
import pytest

from common.errors import InvalidRequest
from common.spec.sampling import Sampling
from runner.core.grammar.token_grammar import GrammarCursor
from runner.engine.batched import sampling_pool
from runner.engine.batched.sampler import Sampler
from runner.engine.batched.sampling_pool import SamplingJob, SamplingPool
from runner.engine.bindings.library import start_engine
from runner.engine.llama.batch import Batch
from runner.engine.llama.context import Context
from runner.engine.llama.vocabulary import Vocabulary
from tests.integration.runner import constraints
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.harness import running
from tests.unit.runner.grammar_walks import grammar_of, matches

ROWS = 8
SAMPLINGS = (
    Sampling(temperature=1.0),
    Sampling(temperature=0.8, top_k=0, top_p=0.95),
    Sampling(temperature=1.2, repeat_penalty=1.2, presence_penalty=0.3),
    Sampling(temperature=1.0, top_k=0, typical_p=0.8),
    Sampling(temperature=1.0, xtc_probability=0.5, xtc_threshold=0.01),
    Sampling(temperature=1.0, dry_multiplier=1.0, top_n_sigma=1.5, min_p=0.01),
    Sampling(temperature=1.0, top_k=0, top_p=1.0, dynatemp_range=0.8, dynatemp_exponent=2.0),
)


@pytest.fixture
def decoded(zoo: Zoo) -> Iterator[tuple[Context, Vocabulary, list[int]]]:
    """A context that has just decoded one token in each of eight slots, and where their logits are."""
    start_engine()
    model = llama.llama_model_load_from_file(str(zoo("dense")).encode(), llama.llama_model_default_params())
    vocabulary = Vocabulary(llama.llama_model_get_vocab(model))
    parameters = llama.llama_context_default_params()
    parameters.n_ctx, parameters.n_seq_max, parameters.n_outputs_max, parameters.n_threads = 512, ROWS, ROWS, 1
    context = Context(model, parameters, vocabulary_size=vocabulary.size)
    batch = Batch(capacity=ROWS, slots=ROWS)
    places = [batch.add(slot, 0, [10 + slot], wants_logits=True) for slot in range(ROWS)]
    context.decode(batch)
    context.synchronize()
    yield context, vocabulary, places
    context.close()
    llama.llama_model_free(model)


def samplers(sampling: Sampling) -> list[Sampler]:
    return [
        Sampler(replace(sampling, seed=seed), suppressed=(), context_tokens=512, earlier=range(40))
        for seed in range(ROWS)
    ]


@pytest.mark.parametrize("index", range(len(SAMPLINGS)))
def test_several_threads_choose_what_one_chooses(
    index: int, decoded: tuple[Context, Vocabulary, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    context, _, places = decoded
    monkeypatch.setattr(sampling_pool, "STEP_NS_MIN", 0)
    raw = [context.logits(place).copy() for place in places]
    alone = [
        sampler.sample(context, place, 5) for sampler, place in zip(samplers(SAMPLINGS[index]), places, strict=True)
    ]
    for threads in (1, 3):
        for place, row in zip(places, raw, strict=True):
            context.logits(place)[:] = row
        pool = SamplingPool(context, vocabulary_size=1024, threads=threads)
        assert pool.threads == threads
        wanted = [SamplingJob(one, place, 5) for one, place in zip(samplers(SAMPLINGS[index]), places, strict=True)]
        pool.choose_ahead(wanted)
        assert [pool.sample(one) for one in wanted] == alone
        pool.close()
        assert pool.threads == 0


def test_little_work_stays_where_it_is(decoded: tuple[Context, Vocabulary, list[int]]) -> None:
    context, _, places = decoded
    pool = SamplingPool(context, vocabulary_size=1024, threads=1)
    wanted = [SamplingJob(one, place, 0) for one, place in zip(samplers(SAMPLINGS[0]), places, strict=True)]
    pool.choose_ahead(wanted)
    assert pool._chosen == {}
    assert all(pool.sample(one) >= 0 for one in wanted)
    pool.close()


def test_a_failure_in_a_thread_is_raised_for_its_sequence_alone(
    decoded: tuple[Context, Vocabulary, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    context, vocabulary, places = decoded
    monkeypatch.setattr(sampling_pool, "STEP_NS_MIN", 0)
    resumed = GrammarCursor(
        constraints.grammar('root ::= "x"', vocabulary), resumed=vocabulary.tokenize(b"y", parse_special=False)
    )
    made = samplers(SAMPLINGS[0])
    made[3] = Sampler(SAMPLINGS[0], suppressed=(), context_tokens=512, earlier=(), grammar=resumed)
    made[3].cost = made[0].cost
    pool = SamplingPool(context, vocabulary_size=1024, threads=1)
    wanted = [SamplingJob(one, place, 0) for one, place in zip(made, places, strict=True)]
    pool.choose_ahead(wanted)
    with pytest.raises(InvalidRequest):
        pool.sample(wanted[3])
    assert all(pool.sample(one) >= 0 for number, one in enumerate(wanted) if number != 3)
    pool.close()


async def test_an_engine_with_several_threads_serves_every_kind_of_sequence(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling_pool, "STEP_NS_MIN", 0)
    monkeypatch.setattr(sampling_pool, "CHOICE_NS_MIN", 0)
    text = "root ::= [a-z ]{40,60}"
    async with running(zoo("dense"), slots=8, sampling_threads=2) as harness:
        grammar = constraints.grammar(text, harness.engine.vocabulary)
        asked = [
            harness.ask(
                f"{number} and the weather",
                sampling=replace(SAMPLINGS[number % len(SAMPLINGS)], seed=number),
                max_tokens=70,
                ignore_eos=number % 4 != 3,
                grammar=grammar if number % 4 == 3 else None,
                top_logprobs=2 if number == 5 else None,
            )
            for number in range(16)
        ]
        for number, answer in enumerate(await asyncio.gather(*asked)):
            if number % 4 == 3:
                assert matches(grammar_of(text), answer.text)
            else:
                assert len(answer.ids) == 70
            assert all((token.logprobs is not None) == (number == 5) for token in answer.tokens if token.piece)
