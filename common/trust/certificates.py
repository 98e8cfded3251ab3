"""Certificates of the cluster: issue them, read them, judge them. Pure but for the drawing of keys."""

import datetime
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from common.trust.roles import URI_SCHEME, RoleName, parse_role

LIFE_S = 24 * 3600.0
_AUTHORITY_LIFE_S = 10 * 365 * 24 * 3600.0
# Other machines' clocks may be so far behind.
_BACKDATED_S = 300.0


class BadCertificate(Exception):
    """A certificate, key or bundle cannot be used; the text says what to do."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Facts:
    """Content of a certificate: its holder, and when it is valid."""

    name: RoleName
    valid_from_unix_s: float
    valid_to_unix_s: float

    @property
    def life_s(self) -> float:
        """Seconds for which it was issued."""
        return self.valid_to_unix_s - self.valid_from_unix_s - _BACKDATED_S

    @property
    def renew_at_unix_s(self) -> float:
        """Half of its life: then a new one takes its place."""
        return self.valid_to_unix_s - self.life_s / 2


def make_authority(now_unix_s: float) -> KeyPair:
    """Draw a key and certify it with itself. Each authority has a name of its own, so that two can be distinguished."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    name = _subject(f"puna cluster {serial:040x}"[:32])
    builder = _builder(name, key.public_key(), now_unix_s, _AUTHORITY_LIFE_S).issuer_name(name).serial_number(serial)
    certificate = (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return KeyPair(_pem(certificate), _private_pem(key))


def issue(authority: KeyPair, name: RoleName, *, now_unix_s: float, life_s: float = LIFE_S) -> KeyPair:
    """Draw a key for the holder of a role and certify it.

    Raises:
        BadCertificate: the authority's own files are damaged.
    """
    issuer, issuer_key = _authority(authority)
    key = ec.generate_private_key(ec.SECP256R1())
    names = [x509.UniformResourceIdentifier(name.uri), *map(x509.DNSName, name.host_names)]
    certificate = (
        _builder(_subject(str(name)[:64]), key.public_key(), now_unix_s, life_s)
        .issuer_name(issuer.subject)
        .serial_number(x509.random_serial_number())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .sign(issuer_key, hashes.SHA256())
    )
    return KeyPair(_pem(certificate), _private_pem(key))


def read_facts(certificate: bytes) -> Facts:
    """Read the holder and the dates of a certificate.

    Raises:
        BadCertificate: it is none, or not that of one role.
    """
    found = _load(certificate)[0]
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
        name = parse_role(uri.removeprefix(URI_SCHEME)) if uri.startswith(URI_SCHEME) else None
    except (x509.ExtensionNotFound, ValueError):
        name = None
    if name is None:
        raise BadCertificate("the certificate names no role; issue one with `puna trust issue ROLE`")
    return Facts(name, found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp())


def check_pair(pair: KeyPair, authorities: bytes, *, now_unix_s: float) -> Facts:
    """Check that a certificate can be used now, with its key, in the cluster of these authorities.

    Raises:
        BadCertificate: it cannot.
    """
    facts, found = read_facts(pair.certificate), _load(pair.certificate)
    if found[0].public_key() != _load_key(pair.key).public_key():
        raise BadCertificate("the key belongs to another certificate; copy both files again")
    if not any(_is_issued_by(found[-1], one) for one in _load(authorities)):
        raise BadCertificate("the certificate is of another cluster than ca.crt; copy its three files again")
    if now_unix_s > facts.valid_to_unix_s:
        raise BadCertificate(f"the certificate expired at {_when(facts.valid_to_unix_s)}; issue it again")
    if now_unix_s < facts.valid_from_unix_s:
        raise BadCertificate(
            f"the certificate is valid from {_when(facts.valid_from_unix_s)}, and the clock of this machine says "
            f"{_when(now_unix_s)}; set the clock"
        )
    return facts


def newest_of(authorities: bytes, count: int) -> bytes:
    """Return the first certificates of a bundle."""
    return b"".join(_pem(one) for one in _load(authorities)[:count])


def _is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _authority(pair: KeyPair) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    return _load(pair.certificate)[0], _load_key(pair.key)


def _load(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise BadCertificate(f"no certificate in PEM: {error}") from error


def _load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise BadCertificate(f"no private key in PEM: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BadCertificate("the private key is not of an elliptic curve")
    return key


def _builder(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, now_unix_s: float, life_s: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .not_valid_before(_date(now_unix_s - _BACKDATED_S))
        .not_valid_after(_date(now_unix_s + life_s))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _subject(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _date(unix_s: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(unix_s, datetime.UTC)


def _when(unix_s: float) -> str:
    return f"{_date(unix_s):%Y-%m-%d %H:%MZ}"


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
