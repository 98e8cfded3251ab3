"""A real Prometheus that scrapes a cluster, with the rules that are deployed."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.ports import free_port
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[1]
PROMETHEUS = ROOT / "deploy" / "prometheus"
START_DEADLINE_S = 20.0
# Words of PromQL that stand where a metric could.
_WORDS = frozenset({"by", "on", "and", "or", "unless", "bool", "ignoring", "without", "group_left"})


@dataclass(kw_only=True)
class Prometheus:
    """One running server."""

    client: httpx.Client
    process: subprocess.Popen[bytes]

    def get(self, path: str, **params: str) -> Any:
        answer = self.client.get(f"/api/v1/{path}", params=params).json()
        assert answer["status"] == "success", (params, answer)
        return answer["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The series of an instant query, each with `metric` (labels) and `value`."""
        found: list[dict[str, Any]] = self.get("query", query=expr)["result"]
        return found

    def value(self, expr: str) -> float:
        """The only value of a query; 0 if there is none."""
        found = self.query(expr)
        return float(found[0]["value"][1]) if found else 0.0

    def stop(self) -> None:
        self.client.close()
        self.process.terminate()
        self.process.wait(60)


def start_prometheus(directory: Path, gateway_url: str, *, waits: str = "") -> Prometheus:
    """Run it as deploy/prometheus/local.yml says, but every second, and for that gateway.

    `waits`: alerts that wait until a fault has lasted do so for this time instead of their own.
    """
    config = yaml.safe_load((PROMETHEUS / "local.yml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(_rules(PROMETHEUS / name, directory, waits)) for name in config["rule_files"]]
    for job in config["scrape_configs"]:
        for discovery in job["http_sd_configs"]:
            discovery["url"] = gateway_url + httpx.URL(discovery["url"]).path
            discovery["refresh_interval"] = "1s"
    return run_prometheus(directory, config)


def _rules(file: Path, directory: Path, waits: str) -> Path:
    if not waits:
        return file
    copy = directory / file.name
    copy.write_text(re.sub(r"^( +for:).*$", rf"\1 {waits}", file.read_text(encoding="utf-8"), flags=re.MULTILINE))
    return copy


def run_prometheus(directory: Path, config: dict[str, Any]) -> Prometheus:
    """Run it with a configuration."""
    file = directory / "prometheus.yml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    port = free_port()
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={file}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)

    def ready() -> bool:
        assert process.poll() is None, (directory / "prometheus.log").read_text(encoding="utf-8")
        try:
            return client.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    wait_until(ready, deadline_s=START_DEADLINE_S, what="Prometheus is ready")
    return Prometheus(client=client, process=process)


def selectors(expr: str) -> set[tuple[str, frozenset[str]]]:
    """The metrics of an expression, each with the labels that it is asked for by."""
    bare = re.sub(r"\b(by|on|ignoring|without)\s*\([^)]*\)", " ", expr)
    found = set()
    for name, matchers in re.findall(r"(?<![\w\"$.])([a-zA-Z_:][\w:]*)\s*(\{[^}]*\})?(?!\s*\()(?![\w:])", bare):
        if name not in _WORDS and (":" in name or name.startswith(("puna_", "process_")) or name in ("up", "ALERTS")):
            labels = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)
            found.add((name, frozenset(labels)))
    return found


def grouping(expr: str) -> set[str]:
    """Every label that an expression groups by."""
    names = (name.strip() for group in re.findall(r"\bby\s*\(([^)]*)\)", expr) for name in group.split(","))
    return {name for name in names if name}
