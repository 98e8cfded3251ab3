"""tests/posture.sh against `puna up`: a cluster as it is shipped passes, and what is broken on purpose is named."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.cluster import Cluster, start_cluster
from tests.waiting import wait_until

SCRIPT = Path(__file__).resolve().parents[1] / "posture.sh"
CHAT = {"model": "demo", "stream": False, "messages": [{"role": "user", "content": "Hi"}]}


def ask(cluster: Cluster) -> None:
    """Have a runner; a cluster beside others may refuse the first request."""
    wait_until(lambda: cluster.post("/api/chat", CHAT).status_code == 200, deadline_s=60, what="the model answers")


def posture(cluster: Cluster, **environment: str) -> tuple[int, list[str]]:
    """Run the script; its status, and the lines that begin with FAIL."""
    done = subprocess.run(
        ["/bin/sh", str(SCRIPT), "up", str(cluster.home)],
        capture_output=True, text=True, check=False, timeout=300, env={"PATH": "/usr/bin:/bin", **environment},
    )  # fmt: skip
    print(done.stdout, done.stderr)
    lines = done.stdout.splitlines()
    assert any(line.startswith("ok   runner serve: no new privileges") for line in lines)
    return done.returncode, [line for line in lines if line.startswith("FAIL")]


def test_a_cluster_as_it_is_shipped_passes_every_check(cluster: Cluster) -> None:
    ask(cluster)
    assert posture(cluster) == (0, [])


def test_what_other_users_can_open_is_named(cluster: Cluster) -> None:
    ask(cluster)
    key, socket = cluster.home / "tls.key", cluster.home / "run" / "redis.sock"
    key.write_text("secret")
    key.chmod(0o644)
    socket.chmod(0o777)
    try:
        status, (line,) = posture(cluster)
    finally:
        key.unlink()
        socket.chmod(0o700)
    assert status == 1
    assert line.startswith("FAIL files: secrets and sockets are closed to other users: ")
    assert str(key) in line
    assert str(socket) in line


def test_a_published_gateway_and_a_secret_in_the_environment_are_named(tmp_path: Path) -> None:
    own = start_cluster(tmp_path / "home", PUNA_HOST="0.0.0.0", PUNA_INSECURE="1", HF_TOKEN="canary")
    try:
        ask(own)
        status, lines = posture(own)
    finally:
        own.stop()
    assert status == 1
    assert f"FAIL listeners: none beyond loopback but none: port {own.port} " in lines
    assert "FAIL gateway: no secret in its environment: HF_TOKEN " in lines
    assert not [line for line in lines if "runner serve" in line]


@pytest.mark.parametrize(
    ("images", "line"),
    [
        ((f"redis@sha256:{'0' * 64}", f"puna:1@sha256:{'a' * 64}"), "ok   images: each is named by its digest"),
        (
            ("puna:latest", f"redis@sha256:{'0' * 64}", "redis@sha256:short"),
            "-    images: not named by digests (deploy/README.md, Pinning): puna:latest redis@sha256:short",
        ),
    ],
)
def test_images_that_are_not_named_by_digests_are_named(images: tuple[str, ...], line: str) -> None:
    """With an engine that says of each container that it is its image."""
    functions = re.findall(r"^(?:of|check_images)\(\) \{.*?^\}", SCRIPT.read_text(), re.MULTILINE | re.DOTALL)
    engine = 'docker() { echo "$4"; }'
    script = "\n".join(["set -u", engine, *functions, 'check_images "$@"'])
    done = subprocess.run(["sh", "-c", script, "-", *images], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [line]
