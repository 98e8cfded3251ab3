"""Self-signed certificates, for tests that speak TLS or check signatures."""

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LOCALHOST = x509.DNSName("localhost")


def self_signed(
    extension: x509.ExtensionType, *, serial: int | None = None
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """One that was made an hour ago and lasts for an hour, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number() if serial is None else serial)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        .sign(key, hashes.SHA256())
    )
    return certificate, key


def write_certificate(folder: Path, *names: x509.GeneralName, serial: int | None = None) -> tuple[Path, Path]:
    """For these names (localhost) and its key, as files of `folder`, in place of those that are there."""
    certificate, key = self_signed(x509.SubjectAlternativeName(names or [LOCALHOST]), serial=serial)
    chain, secret = folder / "chain.pem", folder / "key.pem"
    chain.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    secret.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return chain, secret
