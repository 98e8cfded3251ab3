"""A cluster that serves HTTPS, and whom commands trust."""

import datetime
import ipaddress
import os
import signal
import subprocess
import sys
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.integration.cli.place import ROOT, call_puna
from tests.waiting import wait_until


def _certificate(folder: Path) -> tuple[Path, Path]:
    """Self-signed, for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "puna")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    chain, secret = folder / "chain.pem", folder / "key.pem"
    chain.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    secret.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return chain, secret


def test_commands_trust_only_authorities_that_they_are_told(tmp_path: Path) -> None:
    chain, secret = _certificate(tmp_path)
    home, log = tmp_path / "home", tmp_path / "up.log"
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
        here = {"PUNA_HOME": str(home)}
        untrusted = call_puna("models", **here)
        by_option = call_puna("--cacert", str(chain), "models", **here)
        by_variable = call_puna("models", SSL_CERT_FILE=str(chain), **here)
        broken = call_puna("--cacert", str(secret), "models", **here)
    finally:
        up.send_signal(signal.SIGINT)
        up.wait(60)

    assert "HTTP    https://127.0.0.1:" in log.read_text()
    assert untrusted.returncode == broken.returncode == 5
    assert "is not trusted" in untrusted.stderr
    assert "--cacert" in untrusted.stderr
    assert "key.pem" in broken.stderr
    assert (by_option.returncode, by_variable.returncode) == (0, 0)
    assert "demo" in by_option.stdout
