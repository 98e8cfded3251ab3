"""A host beside that of `puna up`, of the same cluster."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.cluster import Cluster


class SecondHost:
    """One running host, with a home of its own and the models of the cluster."""

    def __init__(self, cluster: Cluster, node_id: str, **environment: str) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="pn"))  # paths of sockets are short
        record = json.loads((cluster.home / "run" / "puna.json").read_text())
        self._environment = os.environ | {
            "PUNA_HOME": str(self.home),
            "PUNA_MODELS": str(cluster.models),
            "PUNA_NODE_ID": node_id,
            "PUNA_NODE_LISTEN": f"unix:{self.home}/host.sock",
            "PUNA_DISCOVERY_ADDRESS": record["discovery_address"],
            "PUNA_METRICS_LISTEN": "127.0.0.1:0",
            **environment,
        }
        self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _start(self) -> None:
        with (self.home / "host.log").open("ab") as log:
            command = [sys.executable, "-m", "runner", "host"]
            self._process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)

    def restart(self) -> None:
        """Start it again after it was killed."""
        self._process.wait(30)
        self._start()

    def stop(self) -> None:
        """End it, also one that has ended or is stopped."""
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(40)
        finally:
            self._process.kill()
