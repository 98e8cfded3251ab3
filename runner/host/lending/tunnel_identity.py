"""Identity of a host to lenders and borrowers: a certificate, made at its start, worthless after its end."""

import datetime
import os
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

# It is pinned, never judged by its dates: no clock of a node can make it invalid while its host lives.
_NOT_BEFORE = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_NOT_AFTER = datetime.datetime(9999, 12, 31, tzinfo=datetime.UTC)
_NAME_LENGTH_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelIdentity:
    """`certificate` is DER, for the other side to pin; `path` holds it with its key, readable by this user alone."""

    certificate: bytes
    path: Path

    def listening(self, borrowers: Iterable[bytes]) -> ssl.SSLContext:
        """TLS for a listener that admits only holders of these certificates."""
        context = self._context(ssl.PROTOCOL_TLS_SERVER, borrowers)
        context.num_tickets = 0
        return context

    def dialling(self, lender: bytes) -> ssl.SSLContext:
        """TLS for a connection to the holder of this very certificate."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT, [lender])

    def _context(self, protocol: "ssl._SSLMethod", pinned: Iterable[bytes]) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.check_hostname = False  # the certificate itself is compared, its names mean nothing
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self.path)
        for certificate in pinned:
            context.load_verify_locations(cadata=certificate)
        return context


def make_identity(path: Path, *, node_id: str) -> TunnelIdentity:
    """Draw a key, certify it with itself and keep both at `path`, in place of an earlier host's."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"puna {node_id}"[:_NAME_LENGTH_MAX])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_NOT_BEFORE)
        .not_valid_after(_NOT_AFTER)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(private + certificate.public_bytes(serialization.Encoding.PEM))
    return TunnelIdentity(certificate=certificate.public_bytes(serialization.Encoding.DER), path=path)


def is_certificate(der: bytes) -> bool:
    """Return True if these bytes are a certificate that can be pinned."""
    try:
        x509.load_der_x509_certificate(der)
    except ValueError:
        return False
    return True
