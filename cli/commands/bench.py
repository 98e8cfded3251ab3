"""`puna bench`: how fast a served model answers this client, alone and together with others."""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx
from rich.console import Console

from cli.core.bench_figures import HEADINGS, Answered, ConcurrencyLevel, bench_prompt, level_of, level_row, prompt_words
from cli.errors import CommandFailed, ExitCode
from cli.output import print_json, print_table
from cli.server import Server, refusal, unreachable

_CONNECT_WITHIN_S = 5.0
_SAMPLE_WORDS = 64
_SAMPLE_NUMBER = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """Options of `puna bench`."""

    model: str
    concurrency: tuple[int, ...]
    requests: int | None  # at each level; None: four for each client
    prompt_tokens: int
    answer_tokens: int
    shared: float  # share of the prompt that all requests have in common


def bench(options: BenchOptions, *, as_json: bool) -> None:
    """Measure level after level; what was measured is printed even if the user stops.

    Raises:
        CommandFailed: stopped, or no request was answered.
    """
    console = Console(stderr=True, highlight=False)
    run = _Bench(options, Server.of(), _say_on(console))
    run.server.check_alive(None)
    stopped = False
    try:
        with console.status(f"measuring {options.model}") if console.is_terminal else nullcontext():
            asyncio.run(run.measure())
    except KeyboardInterrupt:
        stopped = True
    _print(run, stopped=stopped, as_json=as_json)
    if stopped:
        raise CommandFailed("stopped; the levels that were measured are shown", ExitCode.INTERRUPTED)
    if not any(level.requests for level in run.levels):
        raise CommandFailed(f"no request was answered: {run.trouble}")


def _say_on(console: Console) -> Callable[[str], None]:
    return lambda text: console.print(text, style="dim") if console.is_terminal else None


def _print(run: "_Bench", *, stopped: bool, as_json: bool) -> None:
    options, url = run.options, run.server.url
    if as_json:
        did = {name: value for name, value in asdict(options).items() if name != "model"}
        levels = [asdict(level) for level in run.levels]
        print_json({"model": options.model, "url": url, "asked": did, "interrupted": stopped, "levels": levels})
        return
    print(
        f"{options.model} at {url}: POST /api/generate without a template, about {options.prompt_tokens} prompt"
        f" tokens ({options.shared:.0%} shared), at most {options.answer_tokens} answer tokens; one request before,"
        " not counted."
    )
    print_table(HEADINGS, [level_row(level) for level in run.levels])
    if run.trouble and any(level.failed for level in run.levels):
        print(f"failed: {run.trouble}")


@dataclass(slots=True)
class _Bench:
    options: BenchOptions
    server: Server
    say: Callable[[str], None]
    levels: list[ConcurrencyLevel] = field(default_factory=list)
    trouble: str = ""  # why the last request that failed did
    _words: int = 0
    _number: int = 0

    async def measure(self) -> None:
        """Every level.

        Raises:
            CommandFailed: the model cannot be loaded, or generates nothing.
        """
        widest = max(self.options.concurrency)
        async with httpx.AsyncClient(
            **self.server.http_options,
            timeout=httpx.Timeout(None, connect=_CONNECT_WITHIN_S),
            limits=httpx.Limits(max_connections=widest, max_keepalive_connections=widest),
        ) as client:
            self.say("loading the model, and counting the tokens of a prompt")
            sample = bench_prompt(words=_SAMPLE_WORDS, shared_words=0, number=_SAMPLE_NUMBER)
            _, last = await self._generate(client, sample, answer_tokens=1)
            wanted = self.options.prompt_tokens
            self._words = prompt_words(wanted_tokens=wanted, sample=last, sample_words=_SAMPLE_WORDS)
            for concurrency in self.options.concurrency:
                await self._level(client, concurrency)
                self.say("  ".join(level_row(self.levels[-1])))

    async def _level(self, client: httpx.AsyncClient, concurrency: int) -> None:
        """So many clients, each asking again as soon as it has its answer, until all requests are made."""
        left = self.options.requests or 4 * concurrency
        answered: list[Answered] = []
        failed = 0

        async def ask_again() -> None:
            nonlocal left, failed
            while left > 0:
                left -= 1
                try:
                    answered.append(await self._request(client))
                except CommandFailed as error:
                    failed += 1
                    self.trouble = str(error)
                    if error.code is not ExitCode.FAILED:
                        raise

        started_s = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(ask_again())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        wall_s = time.perf_counter() - started_s
        self.levels.append(level_of(concurrency, answered, failed=failed, wall_s=wall_s))

    async def _request(self, client: httpx.AsyncClient) -> Answered:
        number, self._number = self._number, self._number + 1
        shared_words = round(self._words * self.options.shared)
        prompt = bench_prompt(words=self._words, shared_words=shared_words, number=number)
        started_s = time.perf_counter()
        first_s, last = await self._generate(client, prompt, answer_tokens=self.options.answer_tokens)
        ended_s = time.perf_counter()
        return Answered(
            started_s=started_s,
            first_token_s=first_s,
            ended_s=ended_s,
            tokens=int(last.get("eval_count") or 0),
            prompt_tokens=int(last.get("prompt_eval_count") or 0),
            cached_tokens=int(last.get("prompt_cached_count") or 0),
        )

    async def _generate(
        self, client: httpx.AsyncClient, prompt: str, *, answer_tokens: int
    ) -> tuple[float, dict[str, Any]]:
        """Generate one answer; return the time of its first text, and the last object of the stream."""
        options = {"num_predict": answer_tokens, "temperature": 1.0, "seed": self._number}
        body = {"model": self.options.model, "prompt": prompt, "raw": True, "options": options}
        first_s: float | None = None
        last: dict[str, Any] = {}
        try:
            async with client.stream("POST", "/api/generate", json=body) as response:
                if not response.is_success:
                    await response.aread()
                    raise refusal(response)
                async for line in response.aiter_lines():
                    last = json.loads(line)
                    if first_s is None and (last.get("response") or last.get("done")):
                        first_s = time.perf_counter()
        except httpx.HTTPError as error:
            raise unreachable(self.server.url, error) from error
        except ValueError as error:
            raise CommandFailed("the server's answer is not JSON; is it Puna?") from error
        if first_s is None or not last.get("done"):
            raise CommandFailed(str(last.get("error") or "the answer broke off"))
        return first_s, last
