"""Runs the cases of the table with the clients that are installed here, and writes one line of JSON for each.

`python -m tests.conformance.worker FACTS.json [--only TEXT]`; FACTS.json says where the clusters are.
Cases whose cluster it does not name are left out.
"""

import argparse
import asyncio
import contextlib
import importlib
import json
import sys
import time
import traceback
from collections.abc import AsyncIterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.conformance.cases import TABLE
from tests.conformance.table import STREAM, Case, NotInClient, Talk

KINDS = ("sync", "async")
_SECONDS_MAX = 240.0  # of one case; most take less than one


@contextlib.asynccontextmanager
async def client_of(dialect: str, kind: str, stage: dict[str, Any]) -> AsyncIterator[tuple[Any, Any]]:
    """An official client, and its package."""
    package: Any = importlib.import_module(dialect)
    url, key = stage["url"], stage["key"]
    if dialect == "ollama":
        made = (package.AsyncClient if kind == "async" else package.Client)(
            host=url, headers={"Authorization": f"Bearer {key}"}
        )
    elif dialect == "openai":
        maker = package.AsyncOpenAI if kind == "async" else package.OpenAI
        made = maker(base_url=url + "/v1", api_key=key, max_retries=0)
    else:
        maker = package.AsyncAnthropic if kind == "async" else package.Anthropic
        made = maker(base_url=url, api_key=key, max_retries=0)
    try:
        yield made, package
    finally:
        inner = getattr(made, "_client", made) if dialect == "ollama" else made
        closing = getattr(inner, "aclose", None) or inner.close
        closed = closing()
        if hasattr(closed, "__await__"):
            await closed


async def run_case(case: Case, kind: str, mode: str, facts: dict[str, Any]) -> None:
    """One case with one client in one mode.

    Raises:
        AssertionError: the client saw something else.
        Exception: whatever the client raised.
    """
    stage = facts["stages"][case.stage]
    async with client_of(case.dialect, kind, stage) as (api, package):
        talk = Talk(api=api, package=package, stream=mode == STREAM, url=stage["url"], facts=facts | stage)
        async with asyncio.timeout(_SECONDS_MAX):
            await case.run(talk)


def main(arguments: list[str] | None = None) -> int:
    """Exit status 1: a case failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("facts", type=Path)
    parser.add_argument("--only", default="")
    options = parser.parse_args(arguments)
    facts = json.loads(options.facts.read_text())
    failures = 0
    for case in TABLE.values():
        if options.only not in case.id or case.stage not in facts["stages"]:
            continue
        for kind in KINDS:
            for mode in case.modes:
                started_s, why, lacks = time.monotonic(), "", ""
                try:
                    asyncio.run(run_case(case, kind, mode, facts))
                except NotInClient as error:
                    lacks = str(error)
                except Exception as error:  # noqa: BLE001  # every failure is a line of the report
                    why = f"{type(error).__name__}: {error}"[:500] or "failed"
                    traceback.print_exc(file=sys.stderr)
                    failures += 1
                line: dict[str, object] = {"case": case.id, "client": kind, "mode": mode, "why": why, "lacks": lacks}
                line["version"] = version(case.dialect)
                line["seconds"] = round(time.monotonic() - started_s, 3)
                print(json.dumps(line), flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    raise SystemExit(main())
