"""Contract of every engine towards the server, tested through the one interface.

Where engines may differ, `Kind` says so by name; everything else is the same for all.
"""

from pathlib import Path

import pytest

from common.errors import BadModelFile, InvalidRequest, PromptTooLong, PunaError, UnsupportedCapability
from common.spec.sampling import Sampling
from runner.core.model.description import Pooling
from runner.core.model.model_files import ModelFiles
from runner.core.sequence.endings import CONTEXT_FULL, END_TOKEN, LENGTH
from runner.core.sequence.requests import GenerationRequest, TokenizedPrompt
from runner.engine.pooled.engine import PooledLlamaEngine
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.contract import Driver, Listener, driven
from tests.integration.runner.engine_kinds import ALL, CONTEXT_TOKENS, PROMPT, Kind, layout

pytestmark = pytest.mark.behaviour("B-150", "B-151")


@pytest.mark.parametrize("name", ALL)
def test_load_progress_never_falls_and_ends_at_one(name: str, zoo: Zoo) -> None:
    path = zoo("embed_mean" if name == "pooled" else "dense")
    with driven(ALL[name].create(path, layout())) as driver:
        fractions = [progress.fraction for progress in driver.listener.progress]
        assert fractions == sorted(fractions)
        assert fractions[0] < 1.0
        assert fractions[-1] == 1.0
        assert fractions.count(1.0) == 1
        if ALL[name].progresses_while_loading:
            assert len(fractions) > 5


@pytest.mark.parametrize("name", ALL)
def test_load_progress_counts_the_weights_from_the_beginning(name: str, zoo: Zoo) -> None:
    path = zoo("embed_mean" if name == "pooled" else "dense")
    with driven(ALL[name].create(path, layout())) as driver:
        told = driver.listener.progress
        model = driver.listener.model
        assert model is not None
        assert {progress.bytes_total for progress in told} == {model.weights_bytes}
        done = [progress.bytes_done for progress in told]
        assert done == sorted(done)
        assert (done[0], done[-1]) == (0, model.weights_bytes)
        if ALL[name].progresses_while_loading:
            assert len(set(done)) > 5


@pytest.mark.parametrize("name", [name for name, kind in ALL.items() if kind.reads_files])
def test_a_damaged_file_is_a_failed_load_and_the_thread_ends(name: str, zoo: Zoo, tmp_path: Path) -> None:
    source = zoo("embed_mean" if name == "pooled" else "dense")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(source.read_bytes()[: source.stat().st_size // 2])
    listener = Listener()
    engine = ALL[name].create(broken, layout())
    engine.start(listener)
    listener.until(lambda: listener.error is not None)
    assert isinstance(listener.error, BadModelFile)
    assert all(progress.fraction < 1.0 for progress in listener.progress)
    assert engine.join(60)


@pytest.mark.parametrize("name", ALL)
def test_it_stops_at_once_after_its_start(name: str, zoo: Zoo) -> None:
    engine = ALL[name].create(zoo("embed_mean" if name == "pooled" else "dense"), layout())
    listener = Listener()
    engine.start(listener)
    engine.stop()
    assert engine.join(60)
    assert listener.deaths == []


def test_it_says_what_it_loaded(kind: Kind, driver: Driver) -> None:
    assert driver.model.layout.slots == kind.slots
    assert driver.model.slot_context_tokens == CONTEXT_TOKENS
    assert driver.engine.vocabulary.size == len(driver.engine.vocabulary.pieces)
    assert driver.model.weights_bytes > 0
    assert bool(driver.model.warnings) == (kind.slots < 2)


def test_text_goes_through_the_vocabulary_and_comes_back(driver: Driver) -> None:
    vocabulary = driver.engine.vocabulary
    assert vocabulary.detokenize(list(driver.tokens(PROMPT))) == PROMPT.encode()
    (end,) = sorted(vocabulary.end_tokens)[:1]
    assert end in vocabulary.control
    piece = vocabulary.pieces[end]
    assert vocabulary.tokenize(piece, parse_special=True) == [end]
    assert end not in vocabulary.tokenize(piece, parse_special=False)


def test_it_gives_as_many_tokens_as_were_asked_for_and_ends_once(driver: Driver) -> None:
    answer = driver.ask(PROMPT, max_tokens=12)
    assert len(answer.ids) == 12
    assert answer.endings == [LENGTH]
    assert (answer.freed, answer.errors) == (1, [])
    assert answer.progress[-1].done_tokens == answer.progress[-1].total_tokens == len(driver.tokens(PROMPT))


def test_no_token_at_all_may_be_wanted(driver: Driver) -> None:
    answer = driver.ask(PROMPT, max_tokens=0)
    assert (answer.ids, answer.endings, answer.freed) == ([], [LENGTH], 1)


def test_an_end_token_ends_the_sequence(driver: Driver) -> None:
    end = min(driver.engine.vocabulary.end_tokens)
    sampling = Sampling(temperature=0.0, logit_bias={end: 90.0})
    answer = driver.ask(PROMPT, max_tokens=12, ignore_eos=False, sampling=sampling)
    assert (answer.ids, answer.endings) == ([end], [END_TOKEN])
    over = driver.ask(PROMPT, max_tokens=3, ignore_eos=True, sampling=sampling)
    assert (over.ids, over.endings) == ([end] * 3, [LENGTH])


def test_a_cancelled_sequence_gives_its_slot_back(kind: Kind, driver: Driver) -> None:
    running = [driver.submit(PROMPT, max_tokens=None) for _ in range(kind.slots)]
    driver.listener.until(lambda: all(driver.listener.answers[one].ids for one in running))
    for one in running:
        driver.engine.cancel(one)
    for one in running:
        assert driver.read(one).endings == []
    assert len(driver.ask(PROMPT, max_tokens=3).ids) == 3
    driver.engine.cancel(running[0])  # unknown by now
    driver.idle()


def test_a_sequence_may_be_cancelled_while_it_waits(kind: Kind, driver: Driver) -> None:
    running = [driver.submit(PROMPT, max_tokens=None) for _ in range(kind.slots)]
    driver.listener.until(lambda: all(driver.listener.answers[one].ids for one in running))
    waiting = driver.submit(PROMPT, max_tokens=3)
    driver.listener.until(lambda: driver.listener.reports[-1].waiting == 1)
    driver.engine.cancel(waiting)
    answer = driver.read(waiting)
    assert (answer.ids, answer.times) == ([], None)
    for one in running:
        driver.engine.cancel(one)
    driver.idle()


def test_sequences_beyond_the_slots_wait_and_all_are_served(kind: Kind, driver: Driver) -> None:
    with driver.listener.standing():
        started = [driver.submit(f"Number {number} says", max_tokens=8) for number in range(5)]
    answers = [driver.read(one) for one in started]
    assert [len(answer.ids) for answer in answers] == [8] * 5
    assert {answer.times.slot_id for answer in answers if answer.times} == set(range(kind.slots))
    reports = driver.listener.reports
    assert max(report.slots_busy for report in reports) == kind.slots
    assert max(report.waiting for report in reports) >= 5 - kind.slots - 1
    assert max(report.batch_sequences for report in reports) == kind.slots
    driver.idle()


def test_neighbours_do_not_change_a_sequence(driver: Driver) -> None:
    alone = driver.ask(PROMPT, max_tokens=12, cache_prompt=False)
    with driver.listener.standing():
        one = driver.submit(PROMPT, max_tokens=12, cache_prompt=False)
        other = driver.submit("Quite another thing", max_tokens=12, cache_prompt=False)
    assert driver.read(one).ids == alone.ids
    assert driver.read(other).ids != alone.ids


def test_reports_add_up(driver: Driver) -> None:
    answers = [driver.ask(f"{number} and {PROMPT}", max_tokens=6) for number in range(3)]
    driver.idle()
    reports = driver.listener.reports
    assert sum(report.generated_tokens for report in reports) == 18
    evaluated = sum(
        answer.times.prompt_tokens - answer.times.cached_tokens for answer in answers if answer.times is not None
    )
    assert sum(report.prompt_tokens for report in reports) == evaluated
    assert sum(report.decode_calls for report in reports) >= 18


def test_a_prefix_is_taken_from_the_cache_where_the_engine_keeps_one(kind: Kind, driver: Driver) -> None:
    driver.ask(PROMPT, max_tokens=4)
    times = driver.ask(PROMPT, max_tokens=4).times
    assert times is not None
    assert (times.cached_tokens > 0) == kind.keeps_prefixes
    fresh = driver.ask(PROMPT, max_tokens=4, cache_prompt=False).times
    assert fresh is not None
    assert fresh.cached_tokens == 0


def test_no_prefix_is_taken_from_a_request_of_another_salt(kind: Kind, driver: Driver) -> None:
    driver.ask(PROMPT, max_tokens=4, cache_salt="a")
    found = []
    for salt in ("b", "b", ""):
        times = driver.ask(PROMPT, max_tokens=4, cache_salt=salt).times
        assert times is not None
        found.append(times.cached_tokens > 0)
    assert found == [False, kind.keeps_prefixes, False]


def test_a_cut_ends_a_sequence_and_the_next_request_works(driver: Driver) -> None:
    one = driver.submit(PROMPT, max_tokens=None)
    driver.listener.until(lambda: len(driver.listener.answers[one].ids) >= 4)
    driver.engine.cut(one, 2)
    cut = driver.read(one)
    assert (cut.freed, cut.endings) == (1, [])
    assert driver.ask(PROMPT, resumed=tuple(cut.ids[:2]), max_tokens=3).ids == cut.ids[2:3]


def test_what_was_cut_off_is_not_in_the_cache(kind: Kind, driver: Driver) -> None:
    prompt = driver.tokens(PROMPT)
    one = driver.submit(prompt, max_tokens=None)
    driver.listener.until(lambda: len(driver.listener.answers[one].ids) >= 6)
    driver.engine.cut(one, 2)
    follow = (*prompt, *driver.read(one).ids[:5])
    times = driver.ask(follow, max_tokens=1).times
    assert times is not None
    assert times.cached_tokens == (len(prompt) + 2 if kind.keeps_prefixes else 0)


def test_a_paused_sequence_gets_no_token_until_it_goes_on(driver: Driver) -> None:
    def round_trip() -> None:
        """Commands are taken in order, and between two looks at them an engine makes a step if it can."""
        marker = driver.submit("Nobody waits", max_tokens=1)
        driver.engine.cancel(marker)
        driver.read(marker)

    with driver.listener.standing():
        one = driver.submit(PROMPT, max_tokens=40)
        driver.engine.pause(one, True)
    round_trip()
    held = len(driver.listener.answers[one].ids)
    for _ in range(4):
        round_trip()
    assert len(driver.listener.answers[one].ids) == held < 40
    driver.engine.pause(one, False)
    assert len(driver.read(one).ids) == 40


def test_a_resumed_sequence_goes_on_where_the_first_one_was(driver: Driver) -> None:
    whole = driver.ask(PROMPT, max_tokens=16, cache_prompt=False)
    rest = driver.ask(PROMPT, max_tokens=16, resumed=tuple(whole.ids[:7]), cache_prompt=False)
    assert rest.ids == whole.ids[7:]
    assert rest.endings == [LENGTH]
    assert rest.times is not None
    assert rest.times.prompt_tokens == len(driver.tokens(PROMPT))


def test_what_is_held_of_an_answer_that_goes_on_counts_for_no_prompt(kind: Kind, driver: Driver) -> None:
    prompt = driver.tokens(PROMPT)
    whole = driver.ask(PROMPT, max_tokens=16)
    times = driver.ask(PROMPT, max_tokens=16, resumed=tuple(whole.ids[:7])).times
    assert times is not None
    assert times.cached_tokens == (len(prompt) if kind.keeps_prefixes else 0)
    assert times.evaluated_tokens == (1 if kind.keeps_prefixes else len(prompt) + 7)


def test_a_full_context_ends_a_sequence_that_may_not_shift(driver: Driver) -> None:
    prompt = driver.tokens(PROMPT)
    answer = driver.ask(prompt, max_tokens=None, shift=False)
    assert answer.endings == [CONTEXT_FULL]
    # The last token is sampled from a full cache and needs no cell of its own.
    assert len(prompt) + len(answer.ids) == CONTEXT_TOKENS + 1


def test_a_full_context_is_shifted_and_the_sequence_goes_on(driver: Driver) -> None:
    answer = driver.ask(PROMPT, max_tokens=2 * CONTEXT_TOKENS)
    assert len(answer.ids) == 2 * CONTEXT_TOKENS
    assert answer.endings == [LENGTH]


def test_a_request_may_want_a_smaller_context(driver: Driver) -> None:
    prompt = driver.tokens(PROMPT)[:8]
    answer = driver.ask(prompt, max_tokens=None, shift=False, context_tokens=20)
    assert len(prompt) + len(answer.ids) == 21


ONE = TokenizedPrompt((1,))
BAD_REQUESTS: dict[str, tuple[GenerationRequest, type[PunaError]]] = {
    "nothing to continue": (GenerationRequest(prompt=TokenizedPrompt(())), InvalidRequest),
    "a token that is not there": (GenerationRequest(prompt=TokenizedPrompt((1, 1_000_000))), InvalidRequest),
    "a resumed token that is not there": (GenerationRequest(prompt=ONE, resumed=(1_000_000,)), InvalidRequest),
    "no number": (GenerationRequest(prompt=ONE, sampling=Sampling(top_p=float("nan"))), InvalidRequest),
    "too many alternatives": (GenerationRequest(prompt=ONE, top_logprobs=21), InvalidRequest),
    "a chance above one": (
        GenerationRequest(prompt=ONE, sampling=Sampling(xtc_probability=1.5)),
        InvalidRequest,
    ),
    "a base below one": (GenerationRequest(prompt=ONE, sampling=Sampling(dry_base=0.9)), InvalidRequest),
    "a context of nothing": (GenerationRequest(prompt=ONE, context_tokens=0), InvalidRequest),
    "longer than the context": (
        GenerationRequest(prompt=TokenizedPrompt((1,) * (CONTEXT_TOKENS + 1)), truncate=False),
        PromptTooLong,
    ),
}


def test_bad_requests_are_refused_by_name_and_the_next_one_works(driver: Driver) -> None:
    for index, (request, expected) in enumerate(BAD_REQUESTS.values()):
        with pytest.raises(expected):
            driver.engine.submit(1_000 + index, request)
    assert len(driver.ask(PROMPT, max_tokens=3).ids) == 3


def test_stopping_drops_what_runs_and_waits(kind: Kind, zoo: Zoo) -> None:
    with driven(kind.create(zoo("dense"), layout())) as driver:
        started = [driver.submit(PROMPT, max_tokens=None) for _ in range(4)]
        driver.listener.until(lambda: bool(driver.listener.answers[started[0]].ids))
        driver.engine.stop()
        assert driver.engine.join(60)
        assert [driver.listener.answers[one].freed for one in started] == [1] * 4


def test_the_vocabulary_outlives_the_thread(kind: Kind, zoo: Zoo) -> None:
    """Streams are written, and prompts read, for a while after it has ended."""
    with driven(kind.create(zoo("dense"), layout())) as driver, driven(kind.create(zoo("dense"), layout())) as other:
        driver.engine.stop()
        assert driver.engine.join(60)
        vocabulary, known = driver.engine.vocabulary, other.engine.vocabulary
        assert [*vocabulary.pieces] == [*known.pieces]
        assert vocabulary.tokenize(b"What is Puna?", parse_special=True) == known.tokenize(
            b"What is Puna?", parse_special=True
        )


def test_a_pooled_engine_refuses_to_generate_and_computes_vectors(zoo: Zoo) -> None:
    engine = PooledLlamaEngine(ModelFiles(model=zoo("embed_mean")), layout(), Pooling.MEAN)
    with driven(engine):
        with pytest.raises(UnsupportedCapability):
            engine.submit(1, GenerationRequest(prompt=ONE))
        assert engine.pooled_model.vector_length > 0
