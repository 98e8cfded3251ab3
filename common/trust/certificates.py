"""Certificates of the cluster: issue them, read them, judge them. Pure but for the drawing of keys."""

import datetime
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from common.trust.roles import Role, RoleName, parse_uri, runner_domain

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
    issued_unix_s: float

    @property
    def life_s(self) -> float:
        """Seconds for which it was issued."""
        return self.valid_to_unix_s - self.valid_from_unix_s - _BACKDATED_S

    def is_late(self, now_unix_s: float) -> bool:
        """Return True if half of the time for its renewal has passed."""
        return now_unix_s > self.valid_to_unix_s - self.life_s / 4

    @property
    def renew_at_unix_s(self) -> float:
        """Half of its life: then a new one takes its place."""
        return self.valid_to_unix_s - self.life_s / 2


def make_authority(now_unix_s: float) -> KeyPair:
    """Draw a key and certify it with itself. Each authority has a name of its own, so that two can be distinguished."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    name = _subject(f"puna cluster {serial:040x}"[:32])
    builder = _builder(name, key.public_key(), now_unix_s, now_unix_s + _AUTHORITY_LIFE_S)
    builder = builder.issuer_name(name).serial_number(serial)
    certificate = (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=1), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return KeyPair(_pem(certificate), _private_pem(key))


def issue(authority: KeyPair, name: RoleName, *, now_unix_s: float, life_s: float = LIFE_S) -> KeyPair:
    """Draw a key for the holder of a role and certify it.

    Raises:
        BadCertificate: the authority's own files are damaged.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = certify(authority, key.public_key(), name, now_unix_s=now_unix_s, life_s=life_s)
    return KeyPair(certificate, _private_pem(key))


def certify(
    authority: KeyPair, key: ec.EllipticCurvePublicKey, name: RoleName, *, now_unix_s: float, life_s: float = LIFE_S
) -> bytes:
    """Issue a certificate for the holder of a key; the PEM has those of a node that issues it to a runner, too.

    A node's certificate may issue those of its own runners, and ends no earlier than they do.

    Raises:
        BadCertificate: the authority's own files are damaged.
    """
    issuer, issuer_key = _load(authority.certificate)[0], _load_key(authority.key)
    names = [x509.UniformResourceIdentifier(name.uri), *map(x509.DNSName, name.host_names)]
    is_node, is_runner = name.role is Role.NODE, name.role is Role.RUNNER
    common_name = runner_domain(name.node_id) if is_runner else str(name)[:64]
    end_unix_s = min(now_unix_s + life_s, issuer.not_valid_after_utc.timestamp())
    builder = (
        _builder(_subject(common_name, f"{now_unix_s:.3f}"), key, now_unix_s, end_unix_s)
        .issuer_name(issuer.subject)
        .serial_number(x509.random_serial_number())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=is_node, path_length=0 if is_node else None), critical=True)
        .add_extension(_usage(shakes_hands=True, signs_certificates=is_node), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
    )
    if is_node:
        # Go knows no constraint of directory names, and refuses what it does not know in a critical extension. OpenSSL
        # and gRPC obey constraints in any case.
        builder = builder.add_extension(x509.NameConstraints(_names_of_runners(name), None), critical=False)
    return _pem(builder.sign(issuer_key, hashes.SHA256())) + (authority.certificate if is_runner else b"")


def _names_of_runners(node: RoleName) -> list[x509.GeneralName]:
    """List the names that certificates issued by a node may have.

    The subject counts as well: gRPC compares its common name with the expected host where no DNS name is.
    """
    domain = runner_domain(node.node_id)
    return [x509.DNSName(domain), x509.UniformResourceIdentifier(domain), x509.DirectoryName(_subject(domain))]


def read_facts(certificate: bytes) -> Facts:
    """Read the holder and the dates of a certificate.

    Raises:
        BadCertificate: it is none, or not that of one role.
    """
    found = _load(certificate)[0]
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
        name = parse_uri(uri)
    except (x509.ExtensionNotFound, ValueError):
        name = None
    if name is None:
        raise BadCertificate("the certificate names no role; issue one with `puna trust issue ROLE`")
    valid_from, valid_to = found.not_valid_before_utc, found.not_valid_after_utc
    return Facts(name, valid_from.timestamp(), valid_to.timestamp(), _issued_unix_s(found))


def check_pair(pair: KeyPair, authorities: bytes, *, now_unix_s: float) -> Facts:
    """Check that a certificate can be used now, with its key, in the cluster of these authorities.

    Raises:
        BadCertificate: it cannot.
    """
    facts, found = read_facts(pair.certificate), _load(pair.certificate)
    if facts.name.role is Role.NODE:
        _check_issues_to_runners(found[0], facts.name)
    check_key(pair)
    if issuer_of(pair.certificate, authorities) is None:
        raise BadCertificate("the certificate is of another cluster than ca.crt; copy its three files again")
    if now_unix_s > facts.valid_to_unix_s:
        raise BadCertificate(f"the certificate expired at {when(facts.valid_to_unix_s)}; issue it again")
    if now_unix_s < facts.valid_from_unix_s:
        raise BadCertificate(
            f"the certificate is valid from {when(facts.valid_from_unix_s)}, and the clock of this machine says "
            f"{when(now_unix_s)}; set the clock"
        )
    return facts


def check_key(pair: KeyPair) -> None:
    """Check that a key is that of its certificate, the first one of the PEM.

    Raises:
        BadCertificate: it is not, or one of them is damaged.
    """
    if _load(pair.certificate)[0].public_key() != _load_key(pair.key).public_key():
        raise BadCertificate("the key belongs to another certificate; copy both files again")


def issuer_of(certificate: bytes, authorities: bytes) -> bytes | None:
    """Return the authority that issued a certificate, None if it is none of these.

    Raises:
        BadCertificate: one of them is no certificate.
    """
    found = _load(certificate)[-1]
    return next((_pem(one) for one in _load(authorities) if _is_issued_by(found, one)), None)


def by_fingerprint(authorities: bytes) -> dict[str, bytes]:
    """Return the certificates of a bundle by their SHA-256 in hex, in its order.

    Raises:
        BadCertificate: there is none.
    """
    return {one.fingerprint(hashes.SHA256()).hex(): _pem(one) for one in _load(authorities)}


def _check_issues_to_runners(certificate: x509.Certificate, node: RoleName) -> None:
    """Check that a node's certificate can issue those of its runners, and no others.

    Raises:
        BadCertificate: it cannot, or it could issue any certificate of the cluster.
    """
    wanted = set(_names_of_runners(node)[:2])  # cert-manager knows no constraint of directory names
    try:
        is_authority = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        allowed = certificate.extensions.get_extension_for_class(x509.NameConstraints).value.permitted_subtrees or []
    except x509.ExtensionNotFound:
        is_authority, allowed = False, []
    if not is_authority or {one for one in allowed if not isinstance(one, x509.DirectoryName)} != wanted:
        raise BadCertificate(
            f"the certificate of {node} must be an authority for {runner_domain(node.node_id)} and no other names; "
            f"`puna trust issue {node}` makes it so, docs/security.md has the fields for cert-manager"
        )


def newest_of(authorities: bytes, count: int) -> bytes:
    """Return the first certificates of a bundle."""
    return b"".join(_pem(one) for one in _load(authorities)[:count])


def _is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


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
    subject: x509.Name, key: ec.EllipticCurvePublicKey, now_unix_s: float, end_unix_s: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .not_valid_before(_date(now_unix_s - _BACKDATED_S))
        .not_valid_after(_date(end_unix_s))
    )


def _usage(*, shakes_hands: bool = False, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=shakes_hands,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _subject(common_name: str, issued: str = "") -> x509.Name:
    """Return a subject. The time of issue stands in it because certificates are valid from an earlier one on."""
    qualifier = [x509.NameAttribute(NameOID.DN_QUALIFIER, issued)] if issued else []
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name), *qualifier])


def _issued_unix_s(certificate: x509.Certificate) -> float:
    """Return when a certificate was issued; other authorities than ours are taken not to backdate."""
    written = certificate.subject.get_attributes_for_oid(NameOID.DN_QUALIFIER)
    try:
        return float(str(written[0].value))
    except (IndexError, ValueError):
        return certificate.not_valid_before_utc.timestamp()


def _date(unix_s: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(unix_s, datetime.UTC)


def when(unix_s: float) -> str:
    """Return a date of a certificate as people read it."""
    return f"{_date(unix_s):%Y-%m-%d %H:%MZ}"


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
