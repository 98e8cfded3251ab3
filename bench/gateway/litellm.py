"""LiteLLM's proxy in the gateway's place: one worker on the same core, before a canned server of chat completions.

It is no part of the lock: `BENCH_OPTIONS="--litellm /path/to/venv"` measures what is installed there.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.machine import ROOT
from bench.servers import wait_for
from cli.cluster.plan import FreePort

# Quiet, nothing fetched from elsewhere, and no keys, as with our gateway.
_ENVIRONMENT = {
    "LITELLM_LOG": "ERROR",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
}
_CONFIG = """
model_list:
  - model_name: canned
    litellm_params: {model: openai/canned, api_base: "http://127.0.0.1:UPSTREAM/v1", api_key: none}
litellm_settings: {num_retries: 0, callbacks: [], telemetry: false}
"""


def version_of(venv: Path) -> str:
    """Of the installed package."""
    code = "import importlib.metadata as m; print(m.version('litellm'))"
    return subprocess.run(
        [venv / "bin" / "python", "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


@contextmanager
def running_litellm(venv: Path, *, python: str, core: int, other_core: int) -> Iterator[tuple[str, str, int]]:
    """Addresses of proxy and upstream, and the proxy's process."""
    upstream, port = (FreePort().address().rpartition(":")[2] for _ in range(2))
    with tempfile.TemporaryDirectory(prefix="puna-bench-") as directory:
        config = Path(directory) / "config.yaml"
        config.write_text(_CONFIG.replace("UPSTREAM", upstream))
        log = (Path(directory) / "log").open("wb")
        canned = subprocess.Popen(
            ["taskset", "-c", str(other_core), python, "-m", "bench.gateway.canned_openai", upstream],
            cwd=ROOT, stdout=log, stderr=log,
        )  # fmt: skip
        proxy = subprocess.Popen(
            ["taskset", "-c", str(core), venv / "bin" / "python", "-c", "from litellm import run_server; run_server()",
             "--config", config, "--host", "127.0.0.1", "--port", port, "--num_workers", "1"],
            cwd=directory, env=os.environ | _ENVIRONMENT, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            wait_for(f"http://127.0.0.1:{port}/health/liveliness")
            yield f"127.0.0.1:{port}", f"127.0.0.1:{upstream}", proxy.pid
        finally:
            for process in (proxy, canned):
                process.kill()
                process.wait()
            log.close()
