"""A cluster that serves HTTPS, and whom commands trust."""

import contextlib
import ipaddress
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509

from tests.certificates import write_certificate
from tests.integration.cli.place import ROOT, call_puna
from tests.waiting import wait_until


@contextlib.contextmanager
def _serving(home: Path, chain: Path, secret: Path) -> Iterator[Path]:
    """`puna up` with this certificate; gives its log."""
    log = home.with_suffix(".log")
    with log.open("w") as out:
        up = subprocess.Popen(
            [sys.executable, "-m", "cli.main", "up", "--port", "0", "--grpc-port", "0", "--home", str(home)],
            cwd=ROOT,
            env={**os.environ, "PUNA_TLS_CERT": str(chain), "PUNA_TLS_KEY": str(secret)},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: "Ctrl-C stops" in log.read_text(), deadline_s=90, what="puna up is ready")
        yield log
    finally:
        up.send_signal(signal.SIGINT)
        up.wait(60)


def test_commands_trust_only_authorities_that_they_are_told(tmp_path: Path) -> None:
    chain, secret = write_certificate(tmp_path, x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    home = tmp_path / "home"
    here = {"PUNA_HOME": str(home)}
    with _serving(home, chain, secret) as log:
        untrusted = call_puna("models", **here)
        by_option = call_puna("--cacert", str(chain), "models", **here)
        by_variable = call_puna("models", SSL_CERT_FILE=str(chain), **here)
        broken = call_puna("--cacert", str(secret), "models", **here)
        said = log.read_text()

    assert re.search(r"Ollama +https://127\.0\.0\.1:", said)
    assert untrusted.returncode == broken.returncode == 5
    assert "is not trusted" in untrusted.stderr
    assert "--cacert" in untrusted.stderr
    assert "key.pem" in broken.stderr
    assert (by_option.returncode, by_variable.returncode) == (0, 0)
    assert "demo" in by_option.stdout


def test_where_a_gateway_runs_commands_know_it_by_its_own_certificate_and_nobody_else(tmp_path: Path) -> None:
    """As in its container: PUNA_HOST is what it listens on, and the certificate is for the name that clients dial."""
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
    chain, secret = write_certificate(own, x509.DNSName("models.example.org"))
    stranger, _ = write_certificate(other, x509.DNSName("models.example.org"))
    bundle = own / "bundle.pem"
    bundle.write_bytes(chain.read_bytes() + stranger.read_bytes())
    with _serving(tmp_path / "home", bundle, secret) as log:
        found = re.search(r"Ollama +https://127\.0\.0\.1:(\d+)", log.read_text())
        assert found is not None
        inside = {"PUNA_HOME": str(tmp_path / "none"), "PUNA_HOST": f"0.0.0.0:{found[1]}"}
        known = call_puna("ps", PUNA_TLS_CERT=str(bundle), **inside)
        unknown = call_puna("ps", PUNA_TLS_CERT=str(stranger), **inside)
        empty = call_puna("ps", PUNA_TLS_CERT=str(secret), **inside)

    assert known.returncode == 0, known.stderr
    assert known.stdout.startswith("NAME")
    assert unknown.returncode == empty.returncode == 5
    assert "is not trusted" in unknown.stderr
    assert "key.pem: has no certificate" in empty.stderr
