"""A second machine joins with one command: `puna up --address` on the first, `puna up --join` on the other.

With a token, the other one is in a network namespace of its own. With certificates that were copied by hand, two
addresses of loopback stand for the machines.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
from tests.e2e.namespaces import cabled, missing
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
    """The first machine, and the network namespace of the other. `by_hand`: certificates are copied, by PUNA_TRUST."""

    cluster: Cluster
    address: str
    trust: Path
    other: str  # address of the machine that joins
    inside: tuple[str, ...]  # command by which processes run on it
    by_hand: bool

    def run(self, *words: str) -> str:
        """Run a command of `puna` on the first machine."""
        done = run_puna(*words, PUNA_HOME=str(self.cluster.home), PUNA_HOST=self.cluster.url)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def token(self, *words: str) -> str:
        return self.run("tokens", "create", *words)

    def command(self, home: Path, *words: str) -> list[str]:
        """Return the command that joins on the other machine."""
        up = [sys.executable, "-m", "cli.main", "up", "--join", self.address, "--address", self.other]
        return [*self.inside, *up, "--home", str(home), *words]

    def refusal(self, home: Path, *words: str, **environment: str) -> str:
        """Join and fail; return the line that is said."""
        done = subprocess.run(
            self.command(home, *words),
            cwd=ROOT,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        assert (done.returncode, done.stdout) != (0, ""), done
        assert done.stderr.count("\n") == 1
        return done.stderr

    def to_join(self, directory: Path) -> tuple[list[str], dict[str, str]]:
        """Return the options and settings of a machine that has never been there."""
        if not self.by_hand:
            return ["--token", self.token("--node", "there")], {}
        issued = Path(run_puna("trust", "issue", "node/there", "--dir", str(self.trust)).stdout.strip())
        shutil.copytree(issued, directory / "node" / "there")
        return [], {"PUNA_TRUST": str(directory)}


@pytest.fixture(scope="module", params=["by hand", "token"])
def first(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[First]:
    with ExitStack() as stack:
        directory, environment = tmp_path_factory.mktemp("first"), dict[str, str]()
        address, other, trust = free_address(), free_address(), directory / "home" / "trust"
        inside: tuple[str, ...] = ()
        if request.param == "by hand":
            trust = directory / "trust"
            roles = ("discovery", "scheduler", "gateway", "operator", "node/here")
            for words in (("init",), ("issue", *roles)):
                assert run_puna("trust", *words, "--dir", str(trust)).returncode == 0
            Authority(trust, wall_unix_s=lambda: time.time() - DUE_S).issue(RoleName(Role.GATEWAY))
            environment = {"PUNA_TRUST": str(trust), "PUNA_NODE_ID": "here"}
        elif reason := missing():
            pytest.skip(reason)
        else:
            address, machines = stack.enter_context(cabled(["there"]))
            other, inside = machines["there"].address, ("ip", "netns", "exec", machines["there"].namespace)
        cluster = start_cluster(directory / "home", arguments=("--address", address), **environment)
        stack.callback(cluster.stop)
        yield First(
            cluster=cluster,
            address=address,
            trust=trust,
            other=other,
            inside=inside,
            by_hand=request.param == "by hand",
        )


def nodes(cluster: Cluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run_puna("nodes", "--json", PUNA_HOME=str(cluster.home)).stdout)["nodes"]
    return found


@contextmanager
def joining(first: First, home: Path, *words: str, **environment: str) -> Iterator[Path]:
    """Run a node on the other machine; yield its log once it has joined."""
    log = home.parent / "join.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            first.command(home, *words),
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | environment,
        )
    try:

        def joined() -> bool:
            assert process.poll() is None, log.read_text()
            return "Ctrl-C takes it out again." in log.read_text()

        wait_until(joined, deadline_s=WITHIN_S, what="the second machine says that it has joined")
        yield log
    finally:
        process.terminate()
        assert process.wait(WITHIN_S) == 0


def test_a_machine_that_joins_serves_the_clusters_models_and_goes_with_ctrl_c(first: First, tmp_path: Path) -> None:
    cluster = first.cluster
    here = next(iter(nodes(cluster)))["id"]
    words, environment = first.to_join(tmp_path / "trust")
    with joining(first, tmp_path / "home", *words, **environment) as log:
        (there,) = [node for node in nodes(cluster) if node["id"] != here]
        assert (there["id"], there["address"]) == ("there", f"{first.other}:7603")
        assert f"cluster at {first.address}:7601" in log.read_text()

        # It has no model of its own: it takes the file from the first, and its runner is reached from there.
        drained = run_puna("drain", here, "--wait", PUNA_HOME=str(cluster.home))
        assert drained.returncode == 0, drained.stderr
        body = {"model": "demo", "stream": False, "messages": [{"role": "user", "content": QUESTION}]}
        answer = cluster.post("/api/chat", body | {"options": {"temperature": 0}})
        assert answer.status_code == 200, answer.text
        assert answer.json()["message"]["content"] == trained_answers()[QUESTION]
        (runner,) = [one for node in nodes(cluster) if node["id"] == there["id"] for one in node["runners"]]
        assert runner["metrics_address"].startswith(f"{first.other}:")
        assert run_puna("undrain", here, PUNA_HOME=str(cluster.home)).returncode == 0
    wait_until(
        lambda: [node["id"] for node in nodes(cluster)] == [here],
        deadline_s=WITHIN_S,
        what="it has left",
    )


def test_a_machine_needs_its_token_once_and_is_renewed_while_it_runs(first: First, tmp_path: Path) -> None:
    if first.by_hand:
        pytest.skip("there are no tokens")
    home, token = tmp_path / "home", first.token()
    with joining(first, home, "--token", token, PUNA_NODE_ID="again"):
        pass
    own = home / "trust" / "node" / "again"
    assert "was used, by node again" in first.refusal(tmp_path / "second", "--token", token)
    taken = first.refusal(tmp_path / "second", "--token", first.token(), PUNA_NODE_ID="again")
    assert "there is a node again already; set another PUNA_NODE_ID on this machine" in taken
    assert not (tmp_path / "second" / "trust").exists()
    lines = [json.loads(line) for line in (first.cluster.home / "audit.jsonl").read_text().splitlines()]
    ended = {(one["act"], one["object"]) for one in lines if one.get("status") == "done"}
    assert {("tokens.create", token.split(".")[2]), ("node.admit", "again"), ("trust.issue", "discovery")} <= ended
    assert "trust.init" in {act for act, _ in ended}
    own_lines = (home / "audit.jsonl").read_text().splitlines()
    assert ("trust.join", "done") in {(one["act"], one.get("status")) for one in map(json.loads, own_lines)}

    early = Authority(first.trust, wall_unix_s=lambda: time.time() - DUE_S).issue(RoleName(Role.NODE, "again"))
    for path in early.iterdir():
        path.replace(own / path.name)
    early.rmdir()
    before = (own / "tls.crt").read_bytes()
    with joining(first, home, "--token", token):  # as it was typed the first time
        wait_until(lambda: (own / "tls.crt").read_bytes() != before, deadline_s=WITHIN_S, what="it is renewed")
        first.run("trust", "rotate")
        both = (first.trust / "ca" / "ca.crt").read_bytes()
        wait_until(lambda: (own / "ca.crt").read_bytes() == both, deadline_s=WITHIN_S, what="it knows both authorities")
        assert "again" in {node["id"] for node in nodes(first.cluster)}


def test_a_machine_without_a_token_is_told_where_to_get_one(first: First, tmp_path: Path) -> None:
    said = first.refusal(tmp_path / "home")
    assert f"this machine has no certificate of the cluster at {first.address}:7601; `puna tokens create`" in said


def test_puna_up_renews_certificates_that_are_due(first: First) -> None:
    authority = Authority(first.trust)
    wait_until(
        lambda: min(facts.valid_to_unix_s for facts in authority.issued()) > time.time() + DUE_S,
        deadline_s=WITHIN_S,
        what="the gateway has a new certificate",
    )


async def test_only_certificates_of_the_cluster_reach_what_is_open_to_other_machines(
    first: First, tmp_path: Path
) -> None:
    stranger = Certificates(tmp_path / "other").identity("scheduler")
    gateway = Identity(first.trust / "gateway")
    for identity in (None, stranger, gateway):
        with acting_as(identity):
            discovery = open_channel(f"{first.address}:7601", "discovery")
            host = open_channel(f"{first.address}:7603", "node")
        async with discovery, host:
            watch = discovery_pb2_grpc.DiscoveryStub(discovery).WatchInventory(discovery_pb2.WatchInventoryRequest())
            refused = StatusCode.PERMISSION_DENIED if identity is gateway else StatusCode.UNAVAILABLE
            assert await watch.code() is refused
            stop = host_pb2_grpc.HostStub(host).Stop(host_pb2.StopRequest())
            assert await stop.code() is refused


def test_joining_where_nobody_is_says_what_to_do(tmp_path: Path) -> None:
    address = free_address()
    done = run_puna("up", "--join", address, "--home", str(tmp_path), PUNA_PLAINTEXT="1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"puna: nothing answers at {address}:7601; start the cluster there with `puna up --address {address}`\n"
    )


def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    done = run_puna("up", "--port", "0", "--grpc-port", "0", "--address", "192.0.2.1", "--home", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("puna: 192.0.2.1 is no address of this machine (")
