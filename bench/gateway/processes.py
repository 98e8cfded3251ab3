"""Processes of a benchmark: a gateway with a core of its own, and the canned cluster behind it on another."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from bench.engine.processes import process_cpu_s
from bench.gateway.canned import RUNNER_ID
from bench.machine import ROOT
from bench.servers import wait_until
from cli.cluster.plan import FreePort
from common.trust.authority import Authority
from common.trust.roles import Role, RoleName


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Processes of a run."""

    http: str
    runner: str
    gateway_pid: int
    runner_pid: int


@dataclass(frozen=True, slots=True)
class Cores:
    """One for each process, as far as there are so many; on two, runner and clients share one."""

    gateway: int
    runner: int
    clients: int


def own_cores() -> Cores:
    """Choose cores, and move this process to that of the clients."""
    free = sorted(os.sched_getaffinity(0))
    cores = Cores(gateway=free[0], runner=free[-1], clients=free[1 % len(free)])
    os.sched_setaffinity(0, {cores.clients})
    return cores


def processor_s(pid: int, *, alone: bool = False) -> float:
    """Processor time of the gateway and of the workers that render for it; `alone`: without its children."""
    pids = [pid] if alone else [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    return sum(map(process_cpu_s, pids))


@contextmanager
def running_gateway(cores: Cores, *, tls: bool = False, **settings: str) -> Iterator[Bench]:
    """Run the canned cluster, and a gateway in front of it; `tls`: their processes have certificates."""
    ports = [FreePort().address().rpartition(":")[2] for _ in range(4)]
    scheduler, runner, http, grpc = ports
    with tempfile.TemporaryDirectory(prefix="puna-bench-") as directory:
        trust = _certificates(Path(directory) / "trust") if tls else None
        log = (Path(directory) / "log").open("wb")
        canned = subprocess.Popen(
            ["taskset", "-c", str(cores.runner), sys.executable, "-m", "bench.gateway.canned", scheduler, runner,
             *(("0", str(trust)) if trust else ())],
            cwd=ROOT, stdout=log, stderr=log,
        )  # fmt: skip
        environment = {
            "PUNA_HOST": f"127.0.0.1:{http}",
            "PUNA_GRPC_HOST": f"127.0.0.1:{grpc}",
            "PUNA_SCHEDULER_ADDRESS": f"127.0.0.1:{scheduler}",
            **({"PUNA_TRUST": str(trust / "gateway")} if trust else {}),
            **settings,
        }
        gateway = subprocess.Popen(
            ["taskset", "-c", str(cores.gateway), sys.executable, "-m", "gateway"],
            cwd=ROOT, env=os.environ | environment, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            wait_until(lambda: _is_ready(f"http://127.0.0.1:{http}/readyz"), what="the gateway")
            yield Bench(
                http=f"127.0.0.1:{http}",
                runner=f"127.0.0.1:{runner}",
                gateway_pid=gateway.pid,
                runner_pid=canned.pid,
            )
        finally:
            for process in (gateway, canned):
                process.kill()
                process.wait()
            log.close()


def _certificates(directory: Path) -> Path:
    """Make an authority, and the certificates of the bench's processes."""
    authority = Authority(directory)
    authority.create()
    for name in (RoleName(Role.GATEWAY), RoleName(Role.SCHEDULER), RoleName(Role.RUNNER, RUNNER_ID)):
        authority.issue(name)
    return directory


def _is_ready(url: str) -> bool:
    return httpx.get(url, trust_env=False, timeout=5).status_code == httpx.codes.OK
