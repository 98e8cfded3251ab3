"""The certificate that clients see: read at the start, and again when its files change."""

import asyncio
import ssl
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from common.errors import StartupError
from common.telemetry.logs import get_logger
from common.telemetry.metrics import CONFIG_GENERATION

log = get_logger()

LOOK_S = 2.0

Stamp = tuple[int, int]


@dataclass(slots=True)
class Certificate:
    """A chain and its key, for both listeners. What cannot be used is not taken: the last good one goes on."""

    chain_path: Path
    key_path: Path
    context: ssl.SSLContext = field(default_factory=lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    _pem: tuple[bytes, bytes] = (b"", b"")
    _stamps: tuple[Stamp, Stamp] = ((0, 0), (0, 0))
    _grpc_has: tuple[bytes, bytes] = (b"", b"")

    @classmethod
    def open(cls, chain: Path | None, key: Path | None) -> "Certificate | None":
        """Open the certificate; None: no TLS.

        Raises:
            StartupError: one without the other, or not a certificate and its key.
        """
        if chain is None and key is None:
            return None
        if chain is None or key is None:
            raise StartupError("PUNA_TLS_CERT and PUNA_TLS_KEY belong together")
        certificate = cls(chain.expanduser(), key.expanduser())
        try:
            certificate._read()
        except (OSError, ssl.SSLError) as error:
            raise StartupError(f"PUNA_TLS_CERT, PUNA_TLS_KEY: {error}") from error
        return certificate

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Build credentials for a gRPC server; new connections get the newest certificate."""
        self._grpc_has = self._pem
        # The stubs do not know that a fetcher may answer None.
        return grpc.dynamic_ssl_server_credentials(
            _configuration(self._pem),
            self._next_configuration,  # type: ignore[arg-type]
        )

    async def watch(self) -> None:
        """Take new files when they are there; runs for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                if self._look() != self._stamps:
                    self._read()
                    log.info("tls.renewed", path=str(self.chain_path))
            except (OSError, ssl.SSLError) as error:
                log.warning("tls.broken", path=str(self.chain_path), text=str(error))

    def _read(self) -> None:
        stamps = self._look()
        pem = (self.chain_path.read_bytes(), self.key_path.read_bytes())
        # Into a context of its own first: half a pair must not get into the one that serves.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.chain_path, self.key_path)
        self.context.load_cert_chain(self.chain_path, self.key_path)
        self._pem, self._stamps = pem, stamps
        CONFIG_GENERATION.labels(file="certificate").inc()

    def _look(self) -> tuple[Stamp, Stamp]:
        found = [path.stat() for path in (self.chain_path, self.key_path)]
        first, second = ((status.st_mtime_ns, status.st_size) for status in found)
        return first, second

    def _next_configuration(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the configuration for the next handshake, in a thread of gRPC's. None: as before."""
        newest = self._pem
        if newest == self._grpc_has:
            return None
        self._grpc_has = newest
        return _configuration(newest)


def _configuration(pem: tuple[bytes, bytes]) -> grpc.ServerCertificateConfiguration:
    chain, key = pem
    return grpc.ssl_server_certificate_configuration([(key, chain)])
