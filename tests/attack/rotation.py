"""Streams while certificates live for a minute and the authority is replaced twice: `make rotation`.

Exit status 0 only if no stream broke, no request failed, and certificates were renewed as planned.
"""

import argparse
import asyncio
import datetime
import json
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import httpx

from bench.machine import describe_commit, describe_machine
from common.trust.authority import Authority
from tests.attack.stage import QUESTION, ROOT, Stage, staged

LIFE_S = 60.0
STREAMS = 16
END_TOKENS = ("<|im_end|>", "<|endoftext|>")
SILENCE_S_MAX = 30.0


class Renewal(threading.Thread):
    """Renewal as by `puna trust renew --watch`, from before the start on, and as often as such a short life needs."""

    def __init__(self, directory: Path) -> None:
        """`directory` gets an authority later."""
        super().__init__(daemon=True)
        self.renewed = 0
        self._authority = Authority(directory)
        self._ended = threading.Event()
        self._using = threading.Lock()

    def run(self) -> None:
        while not self._ended.wait(1):
            with self._using:
                if self._authority.exists:
                    self.renewed += len(self._authority.renew())

    def rotate(self) -> None:
        with self._using:
            self._authority.rotate()

    def end(self) -> None:
        self._ended.set()
        self.join()


@dataclass(slots=True)
class Stream:
    """One reader, and what it has seen."""

    tokens: int = 0
    answers: int = 0  # that were as long as answers may be
    longest_gap_s: float = 0.0
    broken: str = ""


def main() -> int:
    """Run, print, write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / f"{today}-rotation.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pr-") as directory:
        settings = {"PUNA_NUM_PARALLEL": str(STREAMS + 4)}
        renewal = Renewal(Path(directory, "trust"))
        renewal.start()
        try:
            with staged(ROOT, Path(directory), life_s=LIFE_S, settings=settings) as stage:
                report = {**describe_commit(), "machine": describe_machine()}
                report |= asyncio.run(_run(stage, renewal, options.seconds))
        finally:
            renewal.end()
    print(json.dumps(report, indent=1))
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    renewed = report["renewals"] >= options.seconds / LIFE_S
    return 0 if renewed and not report["streams_broken"] and not report["requests_failed"] else 1


async def _run(stage: Stage, renewal: Renewal, seconds: float) -> dict[str, Any]:
    streams, failures, requests, authorities = [Stream() for _ in range(STREAMS)], [], 0, 1
    renewed = renewal.renewed
    bias = _against_ends()
    start_s = time.monotonic()
    end_s = start_s + seconds
    readers = [
        asyncio.create_task(_read(stage, stream, {"seed": number, "logit_bias": bias}, end_s))
        for number, stream in enumerate(streams)
    ]
    try:
        while time.monotonic() < end_s:
            if time.monotonic() > start_s + authorities * seconds / 3:
                authorities += 1
                await asyncio.to_thread(renewal.rotate)
            requests += 2
            failures += await _ask(stage)
            await asyncio.sleep(1)
        nodes = [(node.id, "suspect" if node.suspect else "ok") for node in (await stage.inventory()).nodes]
        await asyncio.gather(*readers)
    finally:
        for reader in readers:
            reader.cancel()
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        "seconds": seconds,
        "life_s": LIFE_S,
        "authorities": authorities,
        "renewals": renewal.renewed - renewed,
        "streams": STREAMS,
        "streams_broken": [stream.broken for stream in streams if stream.broken],
        "tokens": sum(stream.tokens for stream in streams),
        "answers_of_full_length": sum(stream.answers for stream in streams),
        "longest_gap_s": round(max(stream.longest_gap_s for stream in streams), 2),
        "requests": requests,
        "requests_failed": failures[:20],
        "nodes": dict(nodes),
    }


def _against_ends() -> dict[str, int]:
    tokens = gguf.GGUFReader(ROOT / "models" / "demo.gguf").fields["tokenizer.ggml.tokens"].contents()
    return {str(tokens.index(token)): -100 for token in END_TOKENS}


async def _read(stage: Stage, stream: Stream, options: dict[str, Any], end_s: float) -> None:
    """Read long answers until the end."""
    # Without the penalty the answer would loop, which ends it.
    options = {"num_predict": 1_000_000, "temperature": 1.5, "repeat_penalty": 1.5, **options}
    body = {"model": "demo", "prompt": "Tell me a story.", "options": options}
    async with httpx.AsyncClient(base_url=stage.url, timeout=SILENCE_S_MAX, trust_env=False) as client:
        while time.monotonic() < end_s and not stream.broken:
            try:
                async with client.stream("POST", "/api/generate", json=body) as response:
                    await _follow(response, stream, end_s)
            except httpx.HTTPError as error:
                stream.broken = repr(error)


async def _follow(response: httpx.Response, stream: Stream, end_s: float) -> None:
    last_s = time.monotonic()
    async for line in response.aiter_lines():
        now_s = time.monotonic()
        stream.longest_gap_s, last_s = max(stream.longest_gap_s, now_s - last_s), now_s
        said = json.loads(line)
        if said.get("done_reason") == "length":
            stream.answers += 1
            return
        if "error" in said or said.get("done"):
            stream.broken = line[:500]
            return
        stream.tokens += 1
        if now_s > end_s:
            return
    stream.broken = f"ended without a last word, status {response.status_code}"


async def _ask(stage: Stage) -> list[str]:
    """Ask the model and the scheduler, over connections of their own."""
    failed = []
    async with stage.client() as client:
        for method, path, body in (("POST", "/api/chat", QUESTION), ("GET", "/puna/v1/nodes", None)):
            try:
                answer = await client.request(method, path, json=body)
                if answer.status_code != httpx.codes.OK:
                    failed.append(f"{path}: {answer.status_code} {answer.text[:200]}")
            except httpx.HTTPError as error:
                failed.append(f"{path}: {error!r}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
