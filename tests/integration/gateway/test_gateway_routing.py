"""Routing of requests, loss of a replica or the scheduler, and freed resources afterwards."""

import asyncio
from typing import Any

import httpx
import openai
import pytest
from grpc import aio

from common.errors import QueueFull, RunnerLost, ShuttingDown
from protos import cluster_pb2, inference_pb2, inference_pb2_grpc, scheduler_pb2
from tests.integration.gateway.conftest import LOOK_AGAIN_S, WAIT_S, Cluster, StartCluster, eventually
from tests.integration.gateway.scripted import ANSWER, MODEL_NAME, ScriptedRunner
from tests.waiting import Stopwatch, next_look

QUESTION: Any = [{"role": "user", "content": "What is Puna?"}]
TEXT = "".join(ANSWER)
NATIVE = {"model": "demo", "messages": QUESTION, "stream": True}


async def hang(_: ScriptedRunner) -> None:
    """Never go on."""
    await asyncio.Event().wait()


@pytest.mark.behaviour("B-113")
@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions", "/api/generate"])
async def test_a_client_that_leaves_mid_stream_cancels_the_runners_call(start_cluster: StartCluster, path: str) -> None:
    async with start_cluster(runner=ScriptedRunner(after_piece={1: hang})) as cluster:
        async with cluster.http.stream("POST", path, json={**NATIVE, "prompt": "x"}) as answer:
            async for _ in answer.aiter_lines():
                break
            assert cluster.runner.busy == 1
        await asyncio.wait_for(cluster.runner.released.wait(), 60)
        await eventually(lambda: not cluster.gateway.service.feeds)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_before_the_first_token_cancels_too(
    start_cluster: StartCluster, stream: bool
) -> None:
    async with start_cluster(runner=ScriptedRunner(before=hang)) as cluster:
        request = asyncio.create_task(cluster.http.post("/api/chat", json=NATIVE | {"stream": stream}))
        await asyncio.wait_for(cluster.runner.started.wait(), 60)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await asyncio.wait_for(cluster.runner.released.wait(), 60)


async def test_a_client_that_leaves_the_queue_frees_its_place(start_cluster: StartCluster) -> None:
    async with start_cluster(runner=ScriptedRunner(slots=1, before=hang)) as cluster:
        dispatcher = cluster.gateway.service.inference.dispatcher
        requests = [asyncio.create_task(cluster.http.post("/api/chat", json=NATIVE)) for _ in range(3)]
        await eventually(lambda: sum(dispatcher.depths().values()) == 2)
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        await eventually(lambda: not dispatcher.depths())
        assert len(cluster.runner.requests) == 1


async def test_a_request_that_finds_the_queue_full_is_not_rendered(
    start_cluster: StartCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start_cluster(runner=ScriptedRunner(slots=1, before=hang), max_queue=1) as cluster:
        dispatcher = cluster.gateway.service.inference.dispatcher
        requests = [asyncio.create_task(cluster.http.post("/api/chat", json=NATIVE)) for _ in range(2)]
        await eventually(lambda: cluster.runner.busy == 1 and sum(dispatcher.depths().values()) == 1)
        monkeypatch.setattr("gateway.answers.inference.make_prompt", None)  # a bug, if it were called
        refused = await cluster.http.post("/v1/chat/completions", json=NATIVE | {"stream": False})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)


async def test_a_request_that_waits_hears_of_its_new_position(start_cluster: StartCluster) -> None:
    free = asyncio.Semaphore(0)

    async def hold(_: ScriptedRunner) -> None:
        await free.acquire()

    async with start_cluster(runner=ScriptedRunner(slots=1, before=hold)) as cluster:
        positions: list[list[int]] = [[], [], []]
        dispatcher = cluster.gateway.service.inference.dispatcher
        requests = []
        for seen in positions:
            requests.append(asyncio.create_task(_ask_over_grpc(cluster, seen)))
            await eventually(lambda: cluster.runner.busy + sum(dispatcher.depths().values()) == len(requests))
        await eventually(lambda: positions == [[], [1], [2]])
        free.release()
        await eventually(lambda: positions == [[], [1], [2, 1]])
        free.release()
        free.release()
        await asyncio.gather(*requests)


async def _ask_over_grpc(cluster: Cluster, positions: list[int]) -> None:
    """Ask, and note each position in the queue."""
    async with aio.insecure_channel(cluster.gateway.grpc_address) as channel:
        message = inference_pb2.ChatMessage(role="user", content="What is Puna?")
        request = inference_pb2.ChatRequest(model="demo", messages=[message])
        async for event in inference_pb2_grpc.InferenceStub(channel).Chat(request):
            if event.WhichOneof("event") == "queued":
                positions.append(event.queued.position)  # noqa: PERF401  # watched while they come


async def test_one_of_several_choices_that_fails_ends_all(start_cluster: StartCluster) -> None:
    runner = ScriptedRunner(slots=2)

    async def fail_the_second(one: ScriptedRunner) -> None:
        if len(one.requests) > 1:
            raise ValueError("a bug of the runner")
        await asyncio.Event().wait()

    runner.after_piece = {0: fail_the_second}
    async with start_cluster(runner=runner) as cluster:
        with pytest.raises(openai.InternalServerError):
            await cluster.openai.chat.completions.create(model="demo", messages=QUESTION, n=2)
        await eventually(lambda: runner.busy == 0)


async def test_requests_spread_over_replicas(start_cluster: StartCluster) -> None:
    gate = asyncio.Event()

    async def hold(_: ScriptedRunner) -> None:
        await gate.wait()

    one, two = ScriptedRunner(slots=2, before=hold), ScriptedRunner(slots=2, before=hold)
    await two.start()
    async with start_cluster(runner=one) as cluster:
        cluster.scheduler.replicas[MODEL_NAME].append(two)
        await cluster.scheduler.publish()
        await eventually(lambda: len(cluster.gateway.service.inference.models.known_route("demo").replicas) == 2)
        answers = [asyncio.create_task(cluster.ollama.chat(model="demo", messages=QUESTION)) for _ in range(4)]
        await eventually(lambda: one.busy == 2 and two.busy == 2)
        gate.set()
        assert [answer.message.content for answer in await asyncio.gather(*answers)] == [TEXT] * 4
    await two.stop()


async def test_a_replica_that_dies_before_the_first_token_is_retried_on_a_new_one(start_cluster: StartCluster) -> None:
    dying = ScriptedRunner()
    stopping: list[asyncio.Task[None]] = []

    async def die(_: ScriptedRunner) -> None:
        stopping.append(asyncio.create_task(dying.stop()))
        await asyncio.Event().wait()

    dying.before = die
    spare = ScriptedRunner()
    await spare.start()
    async with start_cluster(runner=dying) as cluster:
        cluster.scheduler.replicas.pop(MODEL_NAME)  # its host noticed; the gateway has not heard yet
        cluster.scheduler.spare.append(spare)
        answer = await cluster.ollama.chat(model="demo", messages=QUESTION)
        assert answer.message.content == TEXT
        assert len(dying.requests) == len(spare.requests) == 1
        assert dying.requests[0].sampling.seed == spare.requests[0].sampling.seed
        await asyncio.gather(*stopping)
    await spare.stop()


async def test_a_crash_that_the_scheduler_takes_for_one_of_the_load_is_retried_too(
    start_cluster: StartCluster,
) -> None:
    """The replica was gone before its scheduler had heard that it was ready."""
    dying, spare = ScriptedRunner(), ScriptedRunner()
    stopping: list[asyncio.Task[None]] = []

    async def die(_: ScriptedRunner) -> None:
        stopping.append(asyncio.create_task(dying.stop()))
        await asyncio.Event().wait()

    dying.before = die
    await spare.start()
    async with start_cluster(runner=dying) as cluster:

        class Asked(list[scheduler_pb2.EnsureModelRequest]):
            def append(self, request: scheduler_pb2.EnsureModelRequest) -> None:
                super().append(request)
                cluster.scheduler.load_error = RunnerLost("it ended while loading") if len(self) == 1 else None

        cluster.scheduler.ensured = Asked()
        cluster.scheduler.replicas.pop(MODEL_NAME)
        cluster.scheduler.spare.append(spare)
        answer = await cluster.ollama.chat(model="demo", messages=QUESTION)
        assert answer.message.content == TEXT
        assert len(cluster.scheduler.ensured) == 2
        assert len(dying.requests) == len(spare.requests) == 1
        await asyncio.gather(*stopping)
    await spare.stop()


async def test_a_killed_runner_makes_the_next_request_load_a_new_one(start_cluster: StartCluster) -> None:
    spare = ScriptedRunner()
    await spare.start()
    async with start_cluster() as cluster:
        assert (await cluster.ollama.chat(model="demo", messages=QUESTION)).done
        await cluster.runner.stop()
        cluster.scheduler.spare.append(spare)

        async def scheduler_notices() -> None:
            await eventually(lambda: bool(cluster.scheduler.ensured))
            cluster.scheduler.replicas.pop(MODEL_NAME)
            await cluster.scheduler.publish()

        noticing = asyncio.create_task(scheduler_notices())
        answer = await cluster.ollama.chat(model="demo", messages=QUESTION)
        assert answer.message.content == TEXT
        assert len(spare.requests) == 1
        await noticing
    await spare.stop()


async def test_a_scheduler_that_only_knows_a_dead_replica_is_given_up_in_time(start_cluster: StartCluster) -> None:
    async with start_cluster(queue_wait_s=4.0) as cluster:
        assert (await cluster.ollama.chat(model="demo", messages=QUESTION)).done
        await cluster.runner.stop()
        with pytest.raises(openai.InternalServerError) as caught:
            await cluster.openai.chat.completions.create(model="demo", messages=QUESTION)
        assert (caught.value.status_code, caught.value.code) == (503, "model_unavailable")
        assert len(cluster.scheduler.ensured) > 1  # it was asked again


async def test_a_stale_route_is_looked_up_again(start_cluster: StartCluster) -> None:
    renamed, spare = ScriptedRunner(), ScriptedRunner()
    await spare.start()
    async with start_cluster(runner=renamed) as cluster:
        await eventually(lambda: cluster.gateway.service.inference.models.known_route("demo").replicas != ())
        renamed.placement = cluster_pb2.PlacementRef(placement_id="another", generation=9, incarnation="two")
        cluster.scheduler.replicas.pop(MODEL_NAME)
        cluster.scheduler.spare.append(spare)
        assert (await cluster.ollama.chat(model="demo", messages=QUESTION)).message.content == TEXT
        assert len(spare.requests) == 1
    await spare.stop()


async def test_a_runner_that_is_full_or_draining_is_no_error_of_the_client(start_cluster: StartCluster) -> None:
    spare = ScriptedRunner()
    await spare.start()

    async def refuse(one: ScriptedRunner) -> None:
        if len(one.requests) == 1:  # its next report says that it has room again
            raise QueueFull("every place is taken")
        raise ShuttingDown("draining")

    async with start_cluster(runner=ScriptedRunner(before=refuse)) as cluster:
        cluster.scheduler.replicas[MODEL_NAME].append(spare)
        answer = await cluster.ollama.chat(model="demo", messages=QUESTION)
        assert answer.message.content == TEXT
    await spare.stop()


async def test_a_runner_that_recovers_is_used_again(start_cluster: StartCluster) -> None:
    failures = [2]

    async def fail_twice(_: ScriptedRunner) -> None:
        if failures[0]:
            failures[0] -= 1
            raise ShuttingDown("not yet")

    async with start_cluster(runner=ScriptedRunner(after_piece={0: fail_twice}), resume=False) as cluster:
        for _ in range(2):
            with pytest.raises(openai.InternalServerError):
                await cluster.openai.chat.completions.create(model="demo", messages=QUESTION)
        answer = await cluster.ollama.chat(model="demo", messages=QUESTION)
        assert answer.message.content == TEXT


async def test_warm_models_answer_without_a_scheduler_and_cold_ones_say_when(start_cluster: StartCluster) -> None:
    async with start_cluster() as cluster:
        await eventually(lambda: cluster.gateway.service.inference.models.known_route("demo").replicas != ())
        await cluster.scheduler.stop()
        assert (await cluster.ollama.chat(model="demo", messages=QUESTION)).message.content == TEXT
        with pytest.raises(openai.NotFoundError):
            await cluster.openai.chat.completions.create(model="nope", messages=QUESTION)
        assert (await cluster.http.get("/readyz")).status_code == 200
    async with start_cluster(warm=False) as cluster:
        await cluster.scheduler.stop()
        with pytest.raises(openai.InternalServerError) as caught:
            await cluster.openai.chat.completions.create(model="demo", messages=QUESTION)
        assert (caught.value.status_code, caught.value.code) == (503, "model_unavailable")
        assert int(caught.value.response.headers["retry-after"]) >= 1


async def test_a_larger_context_asks_for_a_new_placement_and_takes_what_there_is(start_cluster: StartCluster) -> None:
    async with start_cluster(runner=ScriptedRunner(context_tokens=256)) as cluster:
        await cluster.ollama.chat(model="demo", messages=QUESTION, options={"num_ctx": 512})
        assert cluster.scheduler.ensured[0].context_tokens == 512
        assert cluster.runner.requests[0].context_tokens == 256


async def test_a_load_that_its_first_caller_leaves_goes_on_for_the_second(start_cluster: StartCluster) -> None:
    async with start_cluster(warm=False) as cluster:
        cluster.scheduler.loading = asyncio.Event()
        first = asyncio.create_task(cluster.http.post("/api/chat", json=NATIVE))
        await eventually(lambda: bool(cluster.scheduler.ensured))
        second = asyncio.create_task(cluster.ollama.chat(model="demo", messages=QUESTION))
        await eventually(lambda: sum(cluster.gateway.service.inference.dispatcher.depths().values()) == 2)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        cluster.scheduler.loading.set()
        assert (await second).message.content == TEXT
        assert len(cluster.scheduler.ensured) == 1


async def test_a_committed_stream_is_kept_alive_by_comments_while_the_model_loads(start_cluster: StartCluster) -> None:
    async with start_cluster(warm=False, stream_commit_s=1.0) as cluster:
        cluster.scheduler.loading = asyncio.Event()
        async with cluster.http.stream("POST", "/v1/chat/completions", json=NATIVE) as answer:
            assert answer.status_code == 200
            lines = answer.aiter_lines()
            while (said := await anext(lines)) != ": loading 50%":
                assert said == "" or said.startswith(":")
            cluster.scheduler.loading.set()
            rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]"


async def test_lines_of_json_are_never_committed_early(start_cluster: StartCluster) -> None:
    async with start_cluster(warm=False, stream_commit_s=0.01) as cluster:
        cluster.scheduler.loading = asyncio.Event()
        with pytest.raises(httpx.ReadTimeout):
            await cluster.http.post("/api/chat", json=NATIVE, timeout=httpx.Timeout(60, read=0.3))


async def test_a_drain_cuts_what_remains_with_an_error_object(start_cluster: StartCluster) -> None:
    lines: list[str] = []
    begun = asyncio.Event()

    async def read(client: httpx.AsyncClient, url: str) -> None:
        async with client.stream("POST", f"{url}/api/chat", json=NATIVE) as answer:
            async for line in answer.aiter_lines():
                lines.append(line)
                begun.set()

    async with httpx.AsyncClient(timeout=60) as client:
        async with start_cluster(runner=ScriptedRunner(after_piece={1: hang}), drain_s=0.2) as cluster:
            reading = asyncio.create_task(read(client, cluster.url))
            await asyncio.wait_for(begun.wait(), 60)
        await asyncio.wait_for(reading, 60)
    assert lines[-1] == '{"error":"the server is shutting down"}'
    await eventually(lambda: cluster.runner.busy == 0)


async def test_a_drain_lets_answers_end_and_says_that_it_is_not_ready(start_cluster: StartCluster) -> None:
    gate = asyncio.Event()

    async def hold(_: ScriptedRunner) -> None:
        await gate.wait()

    async with httpx.AsyncClient(timeout=60) as client:
        async with start_cluster(runner=ScriptedRunner(after_piece={1: hold}), drain_s=60) as cluster:
            reading = asyncio.create_task(client.post(f"{cluster.url}/api/chat", json=NATIVE))
            await asyncio.wait_for(cluster.runner.started.wait(), 60)
            cluster.gateway.service.draining = True
            ready = await cluster.http.get("/readyz")
            assert (ready.status_code, ready.json()) == (503, {"status": "draining"})
            asyncio.get_running_loop().call_later(0.3, gate.set)  # while the context is being left
        assert '"done":true' in (await reading).text.splitlines()[-1]


async def test_a_load_that_neither_scheduler_nor_runner_reports_any_more_is_unknown_with_its_reason(
    start_cluster: StartCluster,
) -> None:
    async with start_cluster(runner=ScriptedRunner(state=cluster_pb2.RUNNER_STATE_LOADING)) as cluster:

        async def shown() -> Any:
            return (await cluster.http.get("/api/ps")).json()["models"][0]["replicas"][0]

        assert ((await shown())["state"], "reason" in await shown()) == ("loading", False)
        await cluster.scheduler.stop()
        await cluster.runner.stop()
        watch = Stopwatch()
        while (await shown())["state"] == "loading":
            assert not watch.is_past(WAIT_S)
            await next_look(LOOK_AGAIN_S)
        replica = await shown()
        assert (replica["state"], replica["reason"].partition(",")[0]) == ("unknown", "the scheduler cannot be reached")
