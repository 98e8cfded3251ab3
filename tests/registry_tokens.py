"""A server that hands out tokens which a real registry accepts: JSON web tokens, signed by a key that it knows."""

import base64
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from tests.certificates import self_signed

ISSUER, SERVICE = "tokens of a test", "registry of a test"


@dataclass(slots=True)
class TokenServer:
    """Gives every token that is asked for, with what the scope asks for."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    address: str = ""
    asked: list[dict[str, list[str]]] = field(default_factory=list)  # the queries
    authorizations: list[str] = field(default_factory=list)

    def auth_lines(self, directory: Path) -> str:
        """The section of a registry's configuration that sends callers here."""
        directory.mkdir(parents=True, exist_ok=True)
        bundle = directory / "tokens.pem"
        bundle.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
        return (
            f"auth: {{token: {{realm: 'http://{self.address}/token', service: '{SERVICE}', issuer: '{ISSUER}',"
            f" rootcertbundle: {bundle}}}}}\n"
        )

    def token(self, repository: str, actions: list[str]) -> str:
        """For one repository."""
        now = int(time.time())
        certificate = base64.b64encode(self.certificate.public_bytes(serialization.Encoding.DER)).decode()
        header = {"typ": "JWT", "alg": "ES256", "x5c": [certificate]}
        claims = {
            "iss": ISSUER,
            "sub": "",
            "aud": SERVICE,
            "exp": now + 300,
            "nbf": now - 60,
            "iat": now,
            "jti": "1",
            "access": [{"type": "repository", "name": repository, "actions": actions}],
        }
        signed = f"{_encoded(json.dumps(header).encode())}.{_encoded(json.dumps(claims).encode())}"
        r, s = decode_dss_signature(self.key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{signed}.{_encoded(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


@contextlib.contextmanager
def token_server() -> Iterator[TokenServer]:
    """On a port of its own, so that it is another host than the registry."""
    certificate, key = self_signed(x509.BasicConstraints(ca=True, path_length=None), serial=1)
    tokens = TokenServer(certificate, key)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            tokens.asked.append(query)
            tokens.authorizations.append(self.headers.get("authorization", ""))
            _, repository, actions = query["scope"][0].split(":")
            content = json.dumps({"token": tokens.token(repository, actions.split(","))}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            """Silence."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    tokens.address = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield tokens
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
