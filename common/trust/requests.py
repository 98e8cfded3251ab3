"""Signing requests: the holder of a certificate draws the key, and only the request leaves its machine."""

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from common.trust.certificates import BadCertificate, KeyPair

# What each side sends of a request or a certificate is far below this.
REQUEST_BYTES_MAX = 16 * 1024


def make_request() -> KeyPair:
    """Draw a key; the certificate of the pair is still a request for one. The authority gives the names."""
    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return KeyPair(request.public_bytes(serialization.Encoding.PEM), private)


def read_request(pem: bytes) -> ec.EllipticCurvePublicKey:
    """Return the key of a request, whose sender has proved to hold it.

    Raises:
        BadCertificate: it is no request, or not for a key on the curve P-256.
    """
    try:
        request = x509.load_pem_x509_csr(pem[:REQUEST_BYTES_MAX])
        key, is_signed = request.public_key(), request.is_signature_valid
    except (ValueError, TypeError, InvalidSignature) as error:
        raise BadCertificate(f"no certificate signing request in PEM: {error}") from error
    if not is_signed or not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise BadCertificate("the certificate signing request is not signed with a key on the curve P-256")
    return key
