"""Runners that are forked: they are what spawned ones are, and need their zygote no longer. With the real engine."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from protos import cluster_pb2
from runner.client import RunnerClient
from runner.host import metrics
from runner.host.processes import zygote as zygotes
from runner.host.processes.children import RunnerChildResult, run_child, runner_command
from runner.host.processes.process import ProcessHandle, take_lock
from runner.host.processes.spawning import spawn_runner
from runner.host.processes.zygote import Zygote
from tests.integration.host.node import environment_of, is_alive, pids_below, runners_of, running_node
from tests.integration.runner.processes import Answer, collect, greedy
from tests.open_files import open_files
from tests.running_zygote import running_zygote
from tests.waiting import next_look, until

READY = cluster_pb2.RUNNER_STATE_READY
DEADLINE_S = 60.0
LAYOUT = '{"slots": 2, "contextTokens": 512, "threads": 1}'


@pytest.fixture
async def zygote(tmp_path: Path) -> AsyncIterator[Zygote]:
    """The zygote of this process."""
    async with running_zygote(tmp_path) as zygote:
        yield zygote


def forks() -> float:
    """Return how many processes were forked so far."""
    return float(metrics.PROCESS_STARTS.labels(how="forked")._value.get())


@dataclass
class Served:
    """A runner that listens."""

    process: ProcessHandle
    client: RunnerClient
    hello: dict[str, str]
    log: Path

    async def ready(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            async for status in self.client.watch_load():
                if status.state == READY:
                    return

    async def exit_code(self, number: signal.Signals) -> int | None:
        self.process.signal(number)
        assert await self.process.wait(DEADLINE_S)
        return self.process.exit_code


def new(directory: Path) -> Path:
    directory.mkdir()
    return directory


@asynccontextmanager
async def serving(
    model: Path, directory: Path, *, inherited: Sequence[int] = (), **environment: str
) -> AsyncIterator[Served]:
    """A runner as the host starts it, gone afterwards."""
    words = ["--model", str(model), "--listen", f"unix:{new(directory)}/r.sock", "--metrics-listen", "127.0.0.1:0"]
    command = runner_command("serve", [*words, "--layout", LAYOUT])
    log = directory / "runner.log"
    try:
        spawned = await spawn_runner(command, log_path=log, inherited=inherited, environment=environment)
    finally:
        for descriptor in inherited:
            os.close(descriptor)
    try:
        hello = json.loads(await spawned.hello(DEADLINE_S))
        os.chown(directory, os.geteuid(), os.getegid())
        async with RunnerClient(hello["address"]) as client:
            yield Served(spawned.process, client, hello, log)
    finally:
        spawned.process.kill_group()
        assert await spawned.process.wait(DEADLINE_S)


def words_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().rstrip("\0").split("\0")


def children_of(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()


def cut_off(model: Path, directory: Path) -> Path:
    """Write the begin of a model's file."""
    path = directory / "cut.gguf"
    path.write_bytes(model.read_bytes()[:4000])
    return path


async def outcomes(model: Path, damaged: Path) -> list[RunnerChildResult]:
    """Return the results of the short modes, the refusals among them."""
    commands = [
        ("inspect", [str(model)]),
        ("inspect", [str(damaged)]),
        ("measure", ["--model", str(model), "--layout", LAYOUT]),
        ("measure", ["--model", str(model), "--layout", '{"devices": [{"deviceId": "GPU-none", "layerCount": 1}]}']),
        ("measure", ["--model", str(damaged)]),
        ("measure", []),
    ]
    return [await run_child(mode, arguments, timeout_s=DEADLINE_S) for mode, arguments in commands]


async def test_the_short_modes_answer_and_refuse_as_spawned_ones(dense: Path, tmp_path: Path) -> None:
    damaged = cut_off(dense, tmp_path)
    spawned = await outcomes(dense, damaged)
    assert {result.exit_code for result in spawned} == {0, 2, 3, 4}
    async with running_zygote(tmp_path):
        before = forks()
        assert await outcomes(dense, damaged) == spawned
        assert forks() - before == len(spawned)


async def test_a_forked_runner_answers_as_a_spawned_one(dense: Path, tmp_path: Path) -> None:
    async def answers(directory: Path) -> tuple[list[Answer], bool]:
        async with serving(dense, directory) as served:
            await served.ready()
            requests = [
                greedy("Hello", max_tokens=48),
                greedy("The list:", max_tokens=32, grammar='root ::= ("a" | "b")+'),
                greedy("Hello", max_tokens=32, top_logprobs=3),
            ]
            return [await collect(served.client, request) for request in requests], served.process.is_fork

    spawned, is_fork = await answers(tmp_path / "spawned")
    assert not is_fork
    async with running_zygote(tmp_path):
        forked, is_fork = await answers(tmp_path / "forked")
    assert is_fork
    assert [answer.text for answer in forked] == [answer.text for answer in spawned]
    assert [answer.tokens for answer in forked] == [answer.tokens for answer in spawned]


async def test_a_forked_runner_shows_its_own_command_line_session_and_environment(
    zygote: Zygote, dense: Path, tmp_path: Path
) -> None:
    async with serving(dense, tmp_path / "a", CUDA_VISIBLE_DEVICES="GPU-7") as first:
        pid = first.process.pid
        assert first.process.is_fork
        words = runner_command("serve", ["--model", str(dense)])[1:]
        assert words_of(pid)[1 : 1 + len(words)] == words
        assert words_of(pid)[-2:] == ["--layout", LAYOUT]
        assert os.getsid(pid) == os.getpgid(pid) == pid
        assert "CUDA_VISIBLE_DEVICES" in environment_of(pid)
        async with serving(dense, tmp_path / "b") as second:
            assert second.process.is_fork
            assert "CUDA_VISIBLE_DEVICES" not in environment_of(second.process.pid)
            assert first.hello["incarnation"] != second.hello["incarnation"]
    assert zygote.process is not None
    assert "zygote" in words_of(zygote.process.pid)


async def test_descriptors_pass_to_their_runner_and_to_no_other(zygote: Zygote, dense: Path, tmp_path: Path) -> None:
    paths = [tmp_path / "first.lock", tmp_path / "second.lock"]
    async with (
        serving(dense, tmp_path / "a", inherited=[take_lock(paths[0])]) as first,
        serving(dense, tmp_path / "b", inherited=[take_lock(paths[1])]) as second,
    ):
        for served, path in zip((first, second), paths, strict=True):
            own = set(open_files(served.process.pid))
            assert own & {str(one) for one in paths} == {str(path)}
            assert not {name for name in own if name.endswith(("zygote.log", "pidfd]"))}
        assert await first.exit_code(signal.SIGKILL) == -signal.SIGKILL
        os.close(take_lock(paths[0]))  # free again
        assert is_alive(second.process.pid)
    assert zygote.process is not None
    assert not {str(one) for one in paths}.intersection(open_files(zygote.process.pid))


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 0),
        (signal.SIGINT, 0),
        (signal.SIGKILL, -signal.SIGKILL),
        (signal.SIGABRT, -signal.SIGABRT),
        (signal.SIGSEGV, -signal.SIGSEGV),
    ],
)
async def test_the_end_of_a_forked_runner_is_told(
    zygote: Zygote, dense: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    async with serving(dense, tmp_path / "a") as served:
        await served.ready()
        assert served.process.is_fork
        assert await served.exit_code(number) == code
    assert zygote.process is not None
    assert children_of(zygote.process.pid) == ""  # it was reaped


async def test_a_stream_outlives_the_zygote_and_the_next_one_forks(zygote: Zygote, dense: Path, tmp_path: Path) -> None:
    async with serving(dense, tmp_path / "a") as served:
        await served.ready()
        request = greedy("Hello", max_tokens=256)
        whole = await collect(served.client, request)
        stream = asyncio.create_task(collect(served.client, request))
        assert zygote.process is not None
        killed = zygote.process
        os.kill(killed.pid, signal.SIGKILL)
        assert await killed.wait(DEADLINE_S)
        async with serving(dense, tmp_path / "b") as meanwhile:
            assert not meanwhile.process.is_fork
            await meanwhile.ready()
        assert (await stream).tokens == whole.tokens
        assert is_alive(served.process.pid)
        await asyncio.wait_for(zygote.ready.wait(), DEADLINE_S)
        assert zygote.process.pid != killed.pid
        async with serving(dense, tmp_path / "c") as after:
            assert after.process.is_fork
        assert await served.exit_code(signal.SIGKILL) is None  # noticed, though the exit code is lost


async def test_a_zygote_that_does_not_run_is_replaced_and_its_request_never_carried_out(
    zygote: Zygote, dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zygotes, "FORK_TIMEOUT_S", 0.2)
    assert zygote.process is not None
    stopped = zygote.process
    os.kill(stopped.pid, signal.SIGSTOP)
    lock = tmp_path / "placement.lock"
    async with serving(dense, tmp_path / "a", inherited=[take_lock(lock)]) as served:
        assert not served.process.is_fork
        assert await stopped.wait(DEADLINE_S)
        await until(lambda: len(pids_naming(tmp_path / "a")) == 1, what="one runner has the socket")
        assert pids_naming(tmp_path / "a") == [served.process.pid]
        assert await served.exit_code(signal.SIGTERM) == 0
    os.close(take_lock(lock))


def pids_naming(path: Path) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.fsencode(path) in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


async def test_what_an_operator_sets_for_a_device_is_set_before_any_library_is_loaded(
    zygote: Zygote, dense: Path, tmp_path: Path
) -> None:
    async with serving(dense, tmp_path / "a", OMP_NUM_THREADS="1") as served:
        assert not served.process.is_fork
        assert "OMP_NUM_THREADS" in environment_of(served.process.pid)
    assert zygote.ready.is_set()


async def test_a_start_that_is_given_up_leaves_no_process(zygote: Zygote, dense: Path, tmp_path: Path) -> None:
    assert zygote.process is not None
    os.kill(zygote.process.pid, signal.SIGSTOP)
    lock = tmp_path / "placement.lock"

    async def start() -> None:
        async with serving(dense, tmp_path / "a", inherited=[take_lock(lock)]):
            raise AssertionError("it was given up before")

    starting = asyncio.create_task(start())
    await next_look(0)  # it has asked, and waits for the fork
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    os.kill(zygote.process.pid, signal.SIGCONT)
    assert (await run_child("inspect", [str(dense)], timeout_s=DEADLINE_S)).exit_code == 0  # forked after it
    await until(lambda: pids_naming(tmp_path / "a") == [], what="nothing was started")
    os.close(take_lock(lock))


async def test_a_host_forks_its_runners_and_the_next_host_adopts_them(tmp_path: Path, models_directory: Path) -> None:
    async with running_node(tmp_path, models_directory) as node:
        zygote_pid = (await node.host.event("zygote.ready"))["pid"]
        record = await node.run(await node.start_request())
        assert record.status.state == READY
        assert (await node.host.event("runner.spawned"))["how"] == "forked"
        async with RunnerClient(record.address) as client:
            request = greedy("Hello", max_tokens=256)
            whole = await collect(client, request)
            stream = asyncio.create_task(collect(client, request))
            await node.host.end(signal.SIGKILL)
            await until(lambda: not is_alive(zygote_pid), what="the zygote ends with its host")
            assert (await stream).tokens == whole.tokens
        await node.restart_host()
        found = await node.inventory(lambda seen: any(r.status.state == READY for r in runners_of(seen)))
        assert [runner.pid for runner in runners_of(found)] == [record.pid]


async def test_a_host_without_a_zygote_spawns(tmp_path: Path, models_directory: Path) -> None:
    async with running_node(tmp_path, models_directory, PUNA_ZYGOTE="0") as node:
        await node.run(await node.start_request())
        assert (await node.host.event("runner.spawned"))["how"] == "spawned"
        assert not [event for event in node.host.events if event.get("event") == "zygote.ready"]
        assert len(pids_below(node.home)) == 1
