"""Runner processes as a host starts them."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from protos import cluster_pb2, runner_pb2
from runner.client import RunnerClient

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_S = 60.0


@dataclass
class RunnerProcess:
    """A started `python -m runner serve`."""

    process: asyncio.subprocess.Process
    hello: dict[str, Any]
    client: RunnerClient
    log: Path

    async def ready(self) -> cluster_pb2.RunnerStatus:
        """The first status that is not about loading."""
        async with asyncio.timeout(DEADLINE_S):
            async for status in self.client.watch_load():
                if status.state not in (cluster_pb2.RUNNER_STATE_LAUNCHED, cluster_pb2.RUNNER_STATE_LOADING):
                    return status
        raise AssertionError("the watch ended while loading")

    async def status_where(self, **expected: Any) -> cluster_pb2.RunnerStatus:
        """The first status with these fields."""
        async with asyncio.timeout(DEADLINE_S):
            async for status in self.client.watch_load():
                if all(getattr(status, name) == value for name, value in expected.items()):
                    return status
        raise AssertionError("the watch ended")

    async def exit_status(self) -> int:
        async with asyncio.timeout(DEADLINE_S):
            return await self.process.wait()

    async def metric(self, name: str) -> float:
        async with httpx.AsyncClient(timeout=60) as client:
            page = (await client.get(f"http://{self.hello['metrics_address']}/metrics")).text
        rows = [line.rsplit(" ", 1) for line in page.splitlines() if line.split("{")[0].split(" ")[0] == name]
        return sum(float(value) for _, value in rows)

    def events(self) -> list[dict[str, Any]]:
        """The process's log."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]


@asynccontextmanager
async def started(model: Path, directory: Path, *options: str, layout: str = "") -> AsyncIterator[RunnerProcess]:
    """A runner process that is gone afterwards."""
    log = directory / "runner.log"
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "runner", "serve", "--model", str(model), "--listen", f"unix:{directory}/runner.sock"),
            *("--metrics-listen", "127.0.0.1:0", "--verify"),
            *("--layout", layout or '{"slots": 4, "contextTokens": 512, "threads": 1}', *options),
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            cwd=ROOT,
        )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(DEADLINE_S):
            hello = json.loads(await process.stdout.readline())
        async with RunnerClient(hello["address"]) as client:
            yield RunnerProcess(process, hello, client, log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        (directory / "runner.sock").unlink(missing_ok=True)


def greedy(text: str, **fields: Any) -> runner_pb2.GenerateRequest:
    """A request with temperature 0 that goes on over end tokens."""
    values = {"add_bos": True, "truncate": True, "shift": True, "ignore_eos": True, "max_tokens": 16, **fields}
    request = runner_pb2.GenerateRequest(prompt=[runner_pb2.Segment(text=text)], **values)
    request.sampling.temperature = 0
    return request


@dataclass
class Answer:
    """The events of one call."""

    text: str
    tokens: list[runner_pb2.Token]
    finals: list[runner_pb2.Final]


async def collect(client: RunnerClient, request: runner_pb2.GenerateRequest) -> Answer:
    answer = Answer("", [], [])
    async with asyncio.timeout(DEADLINE_S):
        async for event in client.generate(request):
            assert not answer.finals, "an event after the final one"
            match event.WhichOneof("event"):
                case "tokens":
                    answer.text += event.tokens.text
                    answer.tokens += event.tokens.tokens
                case "final":
                    answer.finals.append(event.final)
    return answer
