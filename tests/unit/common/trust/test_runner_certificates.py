"""Names that a node can certify, tried with forged certificates in real handshakes."""

import datetime
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.grpc.client import open_channel
from common.grpc.server import bind_server
from common.trust.certificates import BadCertificate, KeyPair, check_pair, issue
from common.trust.identity import Material
from common.trust.roles import host_name_of, parse_role, runner_domain, runner_peer
from tests.trust import Cluster, acting_as

DEADLINE_S = 30.0
OWN, OTHER = runner_domain("a"), runner_domain("b")
# Subject and names of certificates that node a issues, and the roles for which they must not be taken.
FORGED = {
    "host of the scheduler": (OWN, [f"puna://{OWN}/a/p"], ["scheduler.puna.internal"], "scheduler"),
    "host of another node": (OWN, [f"puna://{OWN}/a/p"], ["b.node.puna.internal"], "node/b"),
    "host of another node's runner": (OWN, [f"puna://{OWN}/a/p"], [f"p.{OTHER}"], "runner/b/p"),
    "host of a node with a longer id": (OWN, [f"puna://{OWN}/a/p"], ["x.a.node.puna.internal"], "node/x.a"),
    "common name of the scheduler": ("scheduler.puna.internal", [f"puna://{OWN}/a/p"], [], "scheduler"),
    "role of the scheduler": (OWN, ["puna://scheduler"], [f"p.{OWN}"], "scheduler"),
    "role of another node": (OWN, ["puna://node/b"], [f"p.{OWN}"], "node/b"),
    "role of the node itself": (OWN, ["puna://node/a"], [f"p.{OWN}"], "node/a"),
    "role of another node's runner": (OWN, [f"puna://{OTHER}/b/p"], [f"p.{OWN}"], "runner/b/p"),
    "role below its own": (OWN, [f"puna://x.{OWN}/a/p"], [f"p.{OWN}"], "runner/a/p"),
}


def forge(issuer: KeyPair, subject: str, uris: list[str], hosts: list[str]) -> KeyPair:
    """Issue a certificate with any names, as the holder of a key can."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    names = [*map(x509.UniformResourceIdentifier, uris), *map(x509.DNSName, hosts)]
    issuer_key = serialization.load_pem_private_key(issuer.key, password=None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.load_pem_x509_certificate(issuer.certificate).subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=1))
        .not_valid_after(now + datetime.timedelta(minutes=10))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    return KeyPair(
        certificate.public_bytes(encoding) + issuer.certificate,
        key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain),
    )


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


@pytest.fixture
def node(cluster: Cluster) -> Material:
    return cluster.identity("node/a").material()


@pytest.fixture
async def discovery(cluster: Cluster) -> AsyncIterator[str]:
    """The address of a server that checks its callers."""
    with acting_as(cluster.identity("discovery")):
        server = bind_server("127.0.0.1:0", register=lambda _: None, services=[])
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop(0)


async def is_let_in(address: str, pair: KeyPair, authorities: bytes) -> bool:
    credentials = grpc.ssl_channel_credentials(authorities, pair.key, pair.certificate)
    options = [("grpc.ssl_target_name_override", host_name_of("discovery"))]
    async with aio.secure_channel(address, credentials, options=options) as channel:
        return await answers(channel)


async def is_believed(peer: str, pair: KeyPair, authorities: bytes, cluster: Cluster) -> bool:
    """Return True if the gateway takes a server with this certificate for `peer`."""
    credentials = grpc.ssl_server_credentials([(pair.key, pair.certificate)], authorities, True)
    server = aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(health_pb2_grpc.HealthServicer(), server)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        with acting_as(cluster.identity("gateway")):
            channel = open_channel(f"127.0.0.1:{port}", peer)
        async with channel:
            return await answers(channel)
    finally:
        await server.stop(0)


async def answers(channel: aio.Channel) -> bool:
    """Return True if the handshake and the caller's role are accepted, whatever the method says."""
    stub = health_pb2_grpc.HealthStub(channel)
    try:
        await stub.Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE_S)  # type: ignore[attr-defined]
    except aio.AioRpcError as error:
        return error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED)
    return True


async def test_a_runner_is_known_by_its_node_and_placement(cluster: Cluster, discovery: str) -> None:
    own = cluster.runner_identity("a", "p").material()
    assert await is_let_in(discovery, own.pair, own.authorities)
    believed = {
        peer: await is_believed(peer, own.pair, own.authorities, cluster)
        for peer in ("runner/a/p", "runner/a/q", "runner/b/p", "node/a", "node", "scheduler")
    }
    assert [peer for peer, is_taken in believed.items() if is_taken] == ["runner/a/p"]


@pytest.mark.parametrize("kind", FORGED)
async def test_a_node_certifies_no_other_holder(kind: str, cluster: Cluster, node: Material, discovery: str) -> None:
    subject, uris, hosts, role = FORGED[kind]
    forged = forge(node.pair, subject, uris, hosts)
    assert not await is_believed(role, forged, node.authorities, cluster)
    assert not await is_let_in(discovery, forged, node.authorities)


async def test_a_node_with_the_same_letters_in_other_case_is_another_one(cluster: Cluster, node: Material) -> None:
    forged = forge(node.pair, OWN, [f"puna://{OWN}/a/p"], [f"p.{OWN}"])
    assert await is_believed("runner/a/p", forged, node.authorities, cluster)
    assert not await is_believed("runner/A/p", forged, node.authorities, cluster)


async def test_a_runner_certifies_nothing(cluster: Cluster, discovery: str) -> None:
    runner = cluster.runner_identity("a", "p").material()
    forged = forge(runner.pair, OWN, [f"puna://{OWN}/a/q"], [f"q.{OWN}"])
    assert not await is_believed("runner/a/q", forged, runner.authorities, cluster)
    assert not await is_let_in(discovery, forged, runner.authorities)


def test_a_runner_is_certified_no_longer_than_its_node(node: Material) -> None:
    late_s = node.facts.valid_to_unix_s - 60
    pair = issue(node.pair, parse_role(runner_peer("a", "p")), now_unix_s=late_s)
    assert check_pair(pair, node.authorities, now_unix_s=late_s).valid_to_unix_s == node.facts.valid_to_unix_s


def test_a_nodes_certificate_that_is_no_authority_is_refused(cluster: Cluster, node: Material) -> None:
    issuer = cluster.authority.directory / "ca"
    authority = KeyPair((issuer / "ca.crt").read_bytes(), (issuer / "ca.key").read_bytes())
    plain = forge(authority, "node/a", ["puna://node/a"], ["a.node.puna.internal", "node.puna.internal"])
    with pytest.raises(BadCertificate, match=r"node/a must be an authority for [0-9a-f]{40}\.runner\.puna\.internal"):
        check_pair(plain, node.authorities, now_unix_s=time.time())
