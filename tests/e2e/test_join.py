"""A second machine joins with one command: `puna up --address` on the first, `puna up --join` on the other.

Two addresses of loopback stand for the machines; nothing of either is on a socket that the other could only reach here.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from grpc import StatusCode

from common.grpc.client import open_channel
from common.trust.authority import Authority
from common.trust.identity import Identity
from common.trust.roles import Role, RoleName
from protos import discovery_pb2, discovery_pb2_grpc, host_pb2, host_pb2_grpc
from tests.cluster import Cluster, start_cluster, trained_answers
from tests.integration.cli.place import ROOT, run_puna
from tests.trust import Cluster as Certificates
from tests.trust import acting_as
from tests.waiting import wait_until

QUESTION = "What is Puna?"
WITHIN_S = 100.0
DUE_S = 13 * 3600.0  # of 24 hours


def free_address() -> str:
    """One of the sixteen million of loopback; Puna's ports are the same on each."""
    return f"127.{random.randrange(1, 250)}.{random.randrange(250)}.{random.randrange(2, 250)}"


@dataclass(frozen=True, kw_only=True)
class First:
    """The first machine. `trust` has the authority, or is None where nothing has a certificate."""

    cluster: Cluster
    address: str
    trust: Path | None

    def trust_of_other(self, directory: Path) -> dict[str, str]:
        """Return the settings of the machine that joins: it has the certificate of its node and no other file."""
        if self.trust is None:
            return {}
        issued = Path(run_puna("trust", "issue", "node/there", "--dir", str(self.trust)).stdout.strip())
        shutil.copytree(issued, directory / "node" / "there")
        return {"PUNA_TRUST": str(directory)}


@pytest.fixture(scope="module", params=["plain", "certificates"])
def first(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[First]:
    address, directory, environment = free_address(), tmp_path_factory.mktemp("first"), {}
    trust = directory / "trust" if request.param == "certificates" else None
    if trust is not None:
        roles = ("discovery", "scheduler", "gateway", "operator", "node/here")
        for words in (("init",), ("issue", *roles)):
            assert run_puna("trust", *words, "--dir", str(trust)).returncode == 0
        Authority(trust, wall_unix_s=lambda: time.time() - DUE_S).issue(RoleName(Role.GATEWAY))
        environment["PUNA_TRUST"] = str(trust)
    cluster = start_cluster(directory / "home", arguments=("--address", address), **environment)
    yield First(cluster=cluster, address=address, trust=trust)
    cluster.stop()


def nodes(cluster: Cluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run_puna("nodes", "--json", PUNA_HOME=str(cluster.home)).stdout)["nodes"]
    return found


def test_a_machine_that_joins_serves_the_clusters_models_and_goes_with_ctrl_c(first: First, tmp_path: Path) -> None:
    cluster, address = first.cluster, first.address
    here = next(iter(nodes(cluster)))["id"]
    other, log = free_address(), tmp_path / "join.log"
    command = [sys.executable, "-m", "cli.main", "up", "--join", address, "--address", other, "--home", str(tmp_path)]
    with log.open("w") as output:
        joining = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | first.trust_of_other(tmp_path / "trust"),
        )
    try:

        def joined() -> bool:
            assert joining.poll() is None, log.read_text()
            return "Ctrl-C takes it out again." in log.read_text()

        wait_until(joined, deadline_s=WITHIN_S, what="the second machine says that it has joined")
        (there,) = [node for node in nodes(cluster) if node["id"] != here]
        assert there["address"] == f"{other}:7603"
        assert f"cluster at {address}:7601" in log.read_text()

        # It has no model of its own: it takes the file from the first, and its runner is reached from there.
        drained = run_puna("drain", here, "--wait", PUNA_HOME=str(cluster.home))
        assert drained.returncode == 0, drained.stderr
        body = {"model": "demo", "stream": False, "messages": [{"role": "user", "content": QUESTION}]}
        answer = cluster.post("/api/chat", body | {"options": {"temperature": 0}})
        assert answer.status_code == 200, answer.text
        assert answer.json()["message"]["content"] == trained_answers()[QUESTION]
        (runner,) = [one for node in nodes(cluster) if node["id"] == there["id"] for one in node["runners"]]
        assert runner["metrics_address"].startswith(f"{other}:")
        assert run_puna("undrain", here, PUNA_HOME=str(cluster.home)).returncode == 0
    finally:
        joining.terminate()
        assert joining.wait(WITHIN_S) == 0
    wait_until(
        lambda: [node["id"] for node in nodes(cluster)] == [here],
        deadline_s=WITHIN_S,
        what="it has left",
    )


def test_puna_up_renews_certificates_that_are_due(first: First) -> None:
    if first.trust is None:
        pytest.skip("there are no certificates")
    authority = Authority(first.trust)
    wait_until(
        lambda: min(facts.valid_to_unix_s for facts in authority.issued()) > time.time() + DUE_S,
        deadline_s=WITHIN_S,
        what="the gateway has a new certificate",
    )


async def test_only_certificates_of_the_cluster_reach_what_is_open_to_other_machines(
    first: First, tmp_path: Path
) -> None:
    if first.trust is None:
        pytest.skip("without certificates everything is let in")
    stranger = Certificates(tmp_path / "other").identity("scheduler")
    gateway = Identity(first.trust / "gateway")
    for identity in (None, stranger, gateway):
        with acting_as(identity):
            discovery = open_channel(f"{first.address}:7601", "discovery")
            host = open_channel(f"{first.address}:7603", "node/here")
        async with discovery, host:
            watch = discovery_pb2_grpc.DiscoveryStub(discovery).WatchInventory(discovery_pb2.WatchInventoryRequest())
            refused = StatusCode.PERMISSION_DENIED if identity is gateway else StatusCode.UNAVAILABLE
            assert await watch.code() is refused
            stop = host_pb2_grpc.HostStub(host).Stop(host_pb2.StopRequest())
            assert await stop.code() is refused


def test_joining_where_nobody_is_says_what_to_do(tmp_path: Path) -> None:
    address = free_address()
    done = run_puna("up", "--join", address, "--home", str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"puna: nothing answers at {address}:7601; start the cluster there with `puna up --address {address}`\n"
    )


def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    done = run_puna("up", "--port", "0", "--grpc-port", "0", "--address", "192.0.2.1", "--home", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("puna: 192.0.2.1 is no address of this machine (")
