"""The running project of docker-compose.yml as a stage of attacks, from a container beside its hosts."""

import asyncio
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.attack.stage import REGISTRY_PORT, ROOT, Stage
from tests.e2e.compose_cluster import HOSTS, IMAGE, PROJECT

MODELS = "/usr/share/puna/models"
REGISTRY = f"registry:{REGISTRY_PORT}"  # the attacker's container


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Containers of the project by service, and where they are in the engine's networks."""

    socket: str
    key: str
    trust: str  # a copy of the authority's files: certificates that an attacker may hold are issued with it
    own: str  # address of the attacker
    host_network: str  # namespace of the first host's container
    machine_network: str  # that of the machine on which the containers run
    containers: dict[str, str]
    addresses: dict[str, dict[str, str]]  # by service and network
    passwords: dict[str, str]  # of Redis, by user


@dataclass(kw_only=True)
class ComposeStage(Stage):
    """The running project, from the network of its hosts."""

    place: Place
    victim: str = HOSTS[0]
    has_certificates: bool = True
    tree: Path = ROOT
    path: str = str(ROOT)

    @property
    def url(self) -> str:
        return "http://gateway:11434"

    @property
    def discovery(self) -> str:
        return "discovery:7601"

    @property
    def hosts(self) -> tuple[str, str]:
        first, second = (f"{name}:7603" for name in HOSTS)
        return first, second

    @property
    def trust(self) -> Path:
        return Path(self.place.trust)

    @property
    def registry(self) -> str:
        return REGISTRY

    def store_free_bytes(self) -> int:
        code = f"import shutil; print(shutil.disk_usage({MODELS!r}).free)"
        return int(self.docker("exec", self.place.containers["host"], "python", "-c", code))

    @property
    def inside(self) -> list[str]:
        return ["nsenter", f"--net={self.place.host_network}"]

    def client(self) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {self.place.key}"}
        return httpx.AsyncClient(base_url=self.url, timeout=60, trust_env=False, headers=headers)

    def attacker_environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PUNA_")}
        return kept | {"PYTHONPATH": self.path, "PUNA_PLAINTEXT": "1"}

    def docker(self, *words: str) -> str:
        """Run the docker client as the machine's operator; return all that was printed."""
        environment = {"PATH": os.environ["PATH"], "DOCKER_HOST": f"unix://{self.place.socket}"}
        done = subprocess.run(
            ["docker", *words], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{words[:2]}: {done.stderr[-2000:]}"
        return done.stdout + done.stderr

    def neighbour(self, network: str, code: str, *words: str) -> str:
        """Run Python in a container of the attacker's on one network."""
        run = ("run", "--rm", "--network", f"{PROJECT}_{network}", "--cap-drop", "ALL", "--entrypoint", "python", IMAGE)
        return self.docker(*run, "-c", code, *words)

    async def restart(self) -> None:
        """Restart a damaged project."""
        await asyncio.to_thread(self.docker, "restart", *self.place.containers.values())
        for _ in range(20):
            if await self.answers(10):
                return
        raise AssertionError("the project does not answer after its restart")
