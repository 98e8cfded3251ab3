"""Banner of `puna up`: the base URL of each kind of client, and commands to try."""

from pathlib import Path

from cli.cluster.plan import Addresses
from common.version import puna_version

_QUESTION = '{"model": "demo", "stream": false, "messages": [{"role": "user", "content": "What is Puna?"}]}'


def ready_banner(models: Path, addresses: Addresses, *, demo: bool) -> str:
    """Return the banner of a machine with a gateway; `demo`: the demo model can be asked."""
    url = addresses.base_url
    body = f" -d '{_QUESTION}'" if demo else ""
    lines = [
        "",
        f"Puna {puna_version()} is ready",
        f"  Ollama     {url}",
        f"  OpenAI     {url}/v1",
        f"  Anthropic  {url}",
        f"  gRPC       {addresses.grpc}  (puna.v1.Inference)",
        f"  page       {url}/ui",
        f"  models     {models}/*.gguf",
        *([f"  join       puna up --join {addresses.opened}  (on another machine)"] if addresses.opened else []),
        "",
        f"Try      curl {url}/api/{'chat' if demo else 'tags'}{body}",
        "Connect  puna connect claude-code  (all clients: puna connect)",
        "",
        "Ctrl-C stops everything.",
    ]
    return "\n".join(lines)


def joined_banner(addresses: Addresses) -> str:
    """Return the banner of a machine that only runs a host."""
    return "\n".join(
        [
            "",
            f"Puna {puna_version()}: this machine is a node of the cluster at {addresses.discovery}",
            f"  host  {addresses.node}",
            "",
            "Ctrl-C takes it out again.",
        ]
    )
