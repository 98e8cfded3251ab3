"""Answers go on at another replica when theirs is lost, and only where that is right."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import ollama
import openai
import pytest
from structlog.testing import CapturingLogger

from common.errors import InternalError, InvalidRequest, ModelUnavailable, QueueFull
from gateway import metrics
from protos import cluster_pb2, runner_pb2
from tests.integration.gateway.conftest import WAIT_S, Cluster, StartCluster, eventually
from tests.integration.gateway.scripted import ANSWER, MODEL_NAME, Context, ScriptedRunner, scripted_model
from tests.waiting import next_look

pytestmark = pytest.mark.usefixtures("way")

REPORT_S = 0.2
QUESTION: Any = [{"role": "user", "content": "What is Puna?"}]
TEXT = "".join(ANSWER)
OPENAI: dict[str, Any] = {"model": "demo", "messages": QUESTION, "stream": True, "seed": 7}
NATIVE: dict[str, Any] = {"model": "demo", "messages": QUESTION, "stream": True, "options": {"seed": 7}}


async def die(one: ScriptedRunner) -> None:
    """As a process that is killed, in the middle of a call."""
    if one not in deaths:
        deaths[one] = asyncio.create_task(one.stop())
    await asyncio.Event().wait()


deaths: dict[ScriptedRunner, asyncio.Task[None]] = {}


async def end_deaths() -> None:
    """Wait until the runners that die are dead, and forget them: their tasks end with the event loop of a test."""
    await asyncio.gather(*deaths.values())
    deaths.clear()


def dying(*, after: int | None, slots: int = 4) -> ScriptedRunner:
    """Its process dies after a piece of its first answer, or before any."""
    if after is None:
        return ScriptedRunner(slots=slots, before=die)
    return ScriptedRunner(slots=slots, after_piece={after: die})


@asynccontextmanager
async def running(start_cluster: StartCluster, *runners: ScriptedRunner, **settings: Any) -> AsyncIterator[Cluster]:
    """All of them replicas of the model. Where they are equally busy, requests go to the first of them that lives."""
    for index, runner in enumerate(runners):
        runner.placement.placement_id = f"placement-{len(runners) - index}"
    async with AsyncExitStack() as stack:
        stack.push_async_callback(end_deaths)
        cluster = await stack.enter_async_context(start_cluster(runner=runners[0], **settings))
        for runner in runners[1:]:
            await runner.start()
            stack.push_async_callback(runner.stop)  # also where the test fails: a server that is left fails others
            cluster.scheduler.replicas[MODEL_NAME].append(runner)
        await cluster.scheduler.publish()
        pool, cache = cluster.gateway.service.inference.dispatcher.pool, cluster.gateway.service.inference.models.routes
        await eventually(lambda: len(pool.candidates(cache.all()[0])) == len(runners))
        yield cluster


async def sse(cluster: Cluster, body: dict[str, Any], **more: Any) -> list[Any]:
    """The objects of a stream, in order; the end marker left out."""
    async with cluster.http.stream("POST", "/v1/chat/completions", json=body, **more) as answer:
        assert answer.status_code == 200
        lines = [line async for line in answer.aiter_lines() if line.startswith("data: ")]
    return [json.loads(line[6:]) for line in lines if line != "data: [DONE]"]


def text_of(events: list[Any], index: int = 0) -> str:
    """The content of one choice."""
    choices = [choice for event in events for choice in event.get("choices", ()) if choice["index"] == index]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


@pytest.mark.parametrize("after", range(len(ANSWER)))
async def test_a_stream_goes_on_after_every_token_at_which_its_replica_can_die(
    start_cluster: StartCluster, after: int
) -> None:
    first, second = dying(after=after, slots=8), ScriptedRunner(slots=2)
    async with running(start_cluster, first, second) as cluster:
        events = await sse(cluster, OPENAI, headers={"x-puna-debug": "1"})
        assert text_of(events) == TEXT
        assert [choice["finish_reason"] for event in events for choice in event["choices"]].count("stop") == 1
        assert second.requests[0].resume_token_ids == [100 + index for index in range(after + 1)]
        assert second.requests[0].sampling == first.requests[0].sampling
        assert second.requests[0].prompt == first.requests[0].prompt
        assert [event["puna"]["resumes"] for event in events if "puna" in event] == [1]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_whole_answer_and_one_that_has_not_begun_are_tried_again_unseen(
    start_cluster: StartCluster, stream: bool
) -> None:
    for after in (None, 1):
        async with running(start_cluster, dying(after=after, slots=8), ScriptedRunner(slots=2)) as cluster:
            answer = await cluster.http.post("/api/chat", json=NATIVE | {"stream": stream})
            rows = [json.loads(line) for line in answer.text.splitlines()]
            assert "".join(row["message"]["content"] for row in rows) == TEXT
            assert [row["done"] for row in rows].count(True) == 1


@pytest.mark.parametrize(("setting", "header"), [(False, None), (True, "0")])
async def test_resuming_can_be_turned_off_and_the_error_is_explicit(
    start_cluster: StartCluster, setting: bool, header: str | None
) -> None:
    headers = {"x-puna-resume": header} if header else {}
    async with running(start_cluster, dying(after=1, slots=8), ScriptedRunner(slots=2), resume=setting) as cluster:
        events = await sse(cluster, OPENAI, headers=headers)
        assert text_of(events) == "".join(ANSWER[:2])
        assert events[-1]["error"]["code"] == "runner_lost"


async def test_of_several_choices_only_the_lost_one_moves(start_cluster: StartCluster) -> None:
    first, second = dying(after=1, slots=1), ScriptedRunner(slots=1)
    third = ScriptedRunner(slots=1)
    async with running(start_cluster, first, second) as cluster:
        cluster.scheduler.spare.append(third)
        await third.start()
        events = await sse(cluster, OPENAI | {"n": 2})
        assert [text_of(events, index) for index in range(2)] == [TEXT, TEXT]
        resumed = [len(request.resume_token_ids) for request in [*second.requests, *third.requests]]
        assert sorted(resumed) == [0, 2]
        await asyncio.gather(*deaths.values())
    await third.stop()


@pytest.mark.parametrize(
    ("path", "beat"), [("/v1/chat/completions", b": "), ("/api/chat", b" ")], ids=["comments", "spaces"]
)
async def test_without_another_replica_an_answer_waits_for_a_load_and_is_kept_alive(
    start_cluster: StartCluster, monkeypatch: pytest.MonkeyPatch, path: str, beat: bytes
) -> None:
    monkeypatch.setattr("gateway.http.endpoint.streaming.HEARTBEAT_S", 0.2)
    first, second = dying(after=1), ScriptedRunner()
    await second.start()
    async with running(start_cluster, first) as cluster:
        cluster.scheduler.loading = asyncio.Event()
        beats, pieces = 0, list[bytes]()
        async with cluster.http.stream("POST", path, json=NATIVE if path == "/api/chat" else OPENAI) as answer:
            async for piece in answer.aiter_raw():
                pieces.append(piece)
                if piece.startswith(beat):
                    beats += 1
                    cluster.scheduler.replicas.pop(MODEL_NAME, None)  # what its host would have told by now
                    if not cluster.scheduler.spare:
                        cluster.scheduler.spare.append(second)
                    cluster.scheduler.loading.set()
        assert beats >= 1
    await second.stop()
    assert text_read(path, b"".join(pieces)) == TEXT


def text_read(path: str, stream: bytes) -> str:
    """Return the text of a stream, of lines of JSON as Ollama's own client reads it."""
    if path == "/api/chat":
        transport = httpx.MockTransport(lambda _: httpx.Response(200, content=stream))
        parts = ollama.Client(host="http://gateway", transport=transport).chat("demo", QUESTION, stream=True)
        return "".join(part.message.content or "" for part in parts)
    return text_of([json.loads(line[6:]) for line in stream.decode().splitlines() if line.startswith("data: {")])


async def test_an_answer_that_waits_says_so_once_and_goes_on_with_the_first_replica_that_there_is(
    start_cluster: StartCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = CapturingLogger()
    monkeypatch.setattr("gateway.answers.inference.log", said)
    monkeypatch.setattr("gateway.answers.inference.AGAIN_S_MIN", 0.01)
    first, second = dying(after=1), ScriptedRunner()
    pauses: list[float | None] = []  # what each refusal said of them
    await second.start()
    async with running(start_cluster, first) as cluster:

        def pause_s(_waited_s: float, retry_after_s: float | None) -> float:
            pauses.append(retry_after_s)
            if len(pauses) == 2:
                cluster.scheduler.load_error = ModelUnavailable("nobody leads", retry_after_s=1.0)
            return 0.02 if len(pauses) < 4 else 2 * WAIT_S  # the last one ends with news only

        monkeypatch.setattr("gateway.answers.inference.again_after_s", pause_s)
        cluster.scheduler.load_error = ModelUnavailable("no device can take the model", retry_after_s=7.0)
        answer = asyncio.create_task(sse(cluster, OPENAI))
        await eventually(lambda: len(pauses) == 4)
        cluster.scheduler.load_error = None
        cluster.scheduler.replicas[MODEL_NAME] = [second]
        await cluster.scheduler.publish()
        assert text_of(await answer) == TEXT
    await second.stop()
    assert pauses == [7.0, 7.0, 1.0, 1.0]
    waits = [call.kwargs["text"] for call in said.calls if call.args == ("answer.waits",)]
    assert waits == ["no device can take the model", "nobody leads"]


async def test_a_request_that_stops_two_runners_is_refused_and_so_are_its_retries(start_cluster: StartCluster) -> None:
    runners = [dying(after=1), dying(after=2), ScriptedRunner()]
    async with running(start_cluster, *runners) as cluster:
        events = await sse(cluster, OPENAI)
        assert events[-1]["error"]["code"] == "request_quarantined"
        assert runners[2].requests == []
        await eventually(lambda: any(report.poison for report in cluster.scheduler.queues))
        (told,) = next(report.poison for report in cluster.scheduler.queues if report.poison)
        assert sorted(one.placement_id for one in told.replicas) == sorted(
            one.placement.placement_id for one in runners[:2]
        )
        with pytest.raises(openai.InternalServerError) as caught:
            await cluster.openai.chat.completions.create(model="demo", messages=QUESTION, seed=7)
        assert caught.value.code == "request_quarantined"
        assert caught.value.response.headers["x-should-retry"] == "false"
        assert runners[2].requests == []
        other = await cluster.openai.chat.completions.create(model="demo", messages=QUESTION, seed=8)
        assert other.choices[0].message.content == TEXT


async def test_the_neighbours_of_a_request_that_kills_runners_are_blamed_only_once(start_cluster: StartCluster) -> None:
    crowd = 4
    poison = 666

    def killed_by_poison() -> ScriptedRunner:
        met = asyncio.Event()

        async def crash(one: ScriptedRunner) -> None:
            if len(one.requests) == crowd or one.requests[-1].resume_token_ids:
                met.set()
            await met.wait()
            if any(request.sampling.seed == poison for request in one.requests):
                await die(one)

        return ScriptedRunner(slots=8, after_piece={1: crash, 2: crash})

    runners = [killed_by_poison() for _ in range(3)]
    async with running(start_cluster, *runners) as cluster:
        for runner in runners[1:]:
            cluster.scheduler.replicas[MODEL_NAME].remove(runner)
        await cluster.scheduler.publish()
        pool, cache = cluster.gateway.service.inference.dispatcher.pool, cluster.gateway.service.inference.models.routes
        await eventually(lambda: len(pool.candidates(cache.all()[0])) == 1)
        asked = [asyncio.create_task(sse(cluster, OPENAI | {"seed": seed})) for seed in (poison, 1, 2, 3)]
        await eventually(lambda: runners[0].busy == crowd or runners[0] in deaths)
        cluster.scheduler.replicas[MODEL_NAME] = runners[1:]
        await cluster.scheduler.publish()
        answers = await asyncio.gather(*asked)
        assert answers[0][-1]["error"]["code"] == "request_quarantined"
        assert [text_of(events) for events in answers[1:]] == [TEXT] * 3
        assert len(deaths) == 2


async def test_a_runner_that_fails_and_lives_is_a_bug_and_not_resumed(start_cluster: StartCluster) -> None:
    async def fail(_: ScriptedRunner) -> None:
        raise InternalError("a bug")

    async with running(start_cluster, ScriptedRunner(slots=8, after_piece={1: fail}), ScriptedRunner(slots=2)) as one:
        events = await sse(one, OPENAI)
        assert events[-1]["error"]["code"] == "internal_error"


async def test_an_engine_that_dies_under_a_living_process_is_resumed(start_cluster: StartCluster) -> None:
    async def fail(one: ScriptedRunner) -> None:
        one.state = cluster_pb2.RUNNER_STATE_ERROR
        one._count(0)
        raise InternalError("the engine ended")

    async with running(start_cluster, ScriptedRunner(slots=8, after_piece={1: fail}), ScriptedRunner(slots=2)) as one:
        assert text_of(await sse(one, OPENAI)) == TEXT


async def test_a_runner_that_its_watch_calls_broken_loses_its_streams_at_once(start_cluster: StartCluster) -> None:
    async def hang(one: ScriptedRunner) -> None:
        one.state = cluster_pb2.RUNNER_STATE_ERROR
        one._count(0)
        await asyncio.Event().wait()

    first, second = ScriptedRunner(slots=8, after_piece={1: hang}), ScriptedRunner(slots=2)
    async with running(start_cluster, first, second) as cluster:
        assert text_of(await sse(cluster, OPENAI)) == TEXT
        assert len(second.requests) == 1


async def test_a_silent_call_counts_as_hung(start_cluster: StartCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.core.dispatch.resume.STALL_S_MIN", 2.0)

    async def hang(_: ScriptedRunner) -> None:
        await asyncio.Event().wait()

    first, second = ScriptedRunner(slots=8, after_piece={1: hang}), Reporting(slots=2)
    stalled = metrics.RESUMES.labels("stalled", "resumed")._value
    before = stalled.get()
    async with running(start_cluster, first, second) as cluster:
        assert text_of(await sse(cluster, OPENAI)) == TEXT
        await eventually(lambda: first.busy == 0)  # its slot is free again
        assert stalled.get() == before + 1


class Reporting(ScriptedRunner):
    """Says how it is again and again, as a real one does. `starves_after`: a piece; then nothing to anybody."""

    def __init__(self, *, slots: int, starves_after: int | None = None) -> None:
        super().__init__(slots=slots, after_piece={starves_after: self._starve} if starves_after is not None else {})
        self._is_starved = False

    async def _starve(self, _: ScriptedRunner) -> None:
        self._is_starved = True
        await asyncio.Event().wait()

    async def WatchLoad(self, request: runner_pb2.WatchLoadRequest, context: Context) -> Any:  # noqa: N802
        while not self._is_starved:
            yield self.status()
            await next_look(REPORT_S)
        await asyncio.Event().wait()


async def test_replicas_that_are_only_starved_are_left_and_nobody_is_blamed(start_cluster: StartCluster) -> None:
    runners = [Reporting(slots=8, starves_after=1), Reporting(slots=6, starves_after=3), Reporting(slots=2)]
    async with running(start_cluster, *runners) as cluster:
        assert text_of(await sse(cluster, OPENAI)) == TEXT
        assert [len(runner.requests) for runner in runners] == [1, 1, 1]
        answer = await cluster.openai.chat.completions.create(model="demo", messages=QUESTION, seed=7)
        assert answer.choices[0].message.content == TEXT


async def test_a_resume_that_is_refused_for_lack_of_room_finds_another_place(start_cluster: StartCluster) -> None:
    async def refuse(_: ScriptedRunner) -> None:
        raise QueueFull("every place is taken")

    runners = [dying(after=1, slots=8), ScriptedRunner(slots=6, before=refuse), ScriptedRunner(slots=2)]
    async with running(start_cluster, *runners) as cluster:
        assert text_of(await sse(cluster, OPENAI)) == TEXT


async def test_a_resume_that_can_never_succeed_ends_in_an_error_object(start_cluster: StartCluster) -> None:
    async def refuse(_: ScriptedRunner) -> None:
        raise InvalidRequest("the resumed answer does not match the grammar", param="resume_token_ids")

    runners = [dying(after=1, slots=8), ScriptedRunner(slots=6, before=refuse)]
    async with running(start_cluster, *runners) as cluster:
        assert (await sse(cluster, OPENAI))[-1]["error"]["code"] == "runner_lost"


async def test_an_answer_does_not_go_on_with_another_file_of_the_same_name(start_cluster: StartCluster) -> None:
    first, second = dying(after=1, slots=8), ScriptedRunner(slots=2)
    async with running(start_cluster, first, second) as cluster:
        changed = scripted_model()
        changed.digest = "cd" * 32

        async def change(one: ScriptedRunner) -> None:
            cluster.scheduler.models[MODEL_NAME] = changed
            await cluster.scheduler.publish()
            routes = cluster.gateway.service.inference.models.routes
            await eventually(lambda: routes.all()[0].model.digest == changed.digest)
            await die(one)

        first.after_piece = {1: change}
        assert (await sse(cluster, OPENAI))[-1]["error"]["code"] == "runner_lost"
        assert second.requests == []


async def test_a_client_that_leaves_between_two_replicas_leaves_nothing_behind(start_cluster: StartCluster) -> None:
    async with running(start_cluster, dying(after=1)) as cluster:
        with pytest.raises(httpx.ReadTimeout):
            await sse(cluster, OPENAI, timeout=httpx.Timeout(60, read=1.0))
        await eventually(lambda: not cluster.gateway.service.feeds)
        await eventually(lambda: not cluster.gateway.service.inference.dispatcher.depths())
