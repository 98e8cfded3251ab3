"""Certificates of real runners: issued by their host, shown to gateways, renewed under running streams."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from common.errors import InvalidRequest, ModelUnavailable, PermissionDenied
from common.grpc.client import open_channel
from common.grpc.errors import domain_errors
from common.network import split_host_port
from common.trust.certificates import read_facts
from common.trust.identity import HeldIdentity
from common.trust.roles import runner_peer
from protos import (
    cluster_pb2,
    discovery_pb2_grpc,
    runner_pb2,
    runner_pb2_grpc,
    store_pb2,
    store_pb2_grpc,
)
from runner.client import RunnerClient
from tests.integration.host.node import DEADLINE_S, Node, environment_of, runners_of, running_node
from tests.trust import Cluster, acting_as
from tests.waiting import until

READY = cluster_pb2.RUNNER_STATE_READY


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path / "trust")


@pytest.fixture
async def node(cluster: Cluster, tmp_path: Path, models_directory: Path) -> AsyncIterator[Node]:
    """The node "a", as the scheduler sees it; its runners listen on TCP."""
    with acting_as(cluster.identity("scheduler")):
        async with running_node(tmp_path, models_directory, cluster, PUNA_RUNNER_LISTEN="127.0.0.1:0") as running:
            yield running


@contextmanager
def gateway_of(cluster: Cluster, record: cluster_pb2.RunnerRecord, *, node_id: str = "a") -> Iterator[RunnerClient]:
    with acting_as(cluster.identity("gateway")):
        yield RunnerClient(record.address, runner_peer(node_id, record.placement.placement_id))


def shown_by(address: str, cluster: Cluster) -> bytes:
    """Return the certificate that a new connection gets, as PEM."""
    files = cluster.directory("gateway")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_cert_chain(files / "tls.crt", files / "tls.key")
    context.load_verify_locations(files / "ca.crt")
    host, port = split_host_port(address)
    with socket.create_connection((host, port)) as plain, context.wrap_socket(plain) as connection:
        shown = connection.getpeercert(binary_form=True)
    assert shown is not None
    return ssl.DER_cert_to_PEM_cert(shown).encode()


async def test_a_gateway_takes_a_replica_for_that_placement_on_that_node_alone(node: Node, cluster: Cluster) -> None:
    request = await node.start_request()
    record = await node.run(request)
    assert "PUNA_TRUST" not in environment_of(record.pid)
    name = read_facts(shown_by(record.address, cluster)).name
    assert str(name) == f"runner/a/{record.placement.placement_id}"
    with gateway_of(cluster, record) as client:
        async with client:
            assert (await client.info()).placement == record.placement
    other = cluster_pb2.RunnerRecord(address=record.address)
    other.placement.placement_id = "another"
    for wrong, node_id in ((record, "b"), (other, "a")):
        with gateway_of(cluster, wrong, node_id=node_id) as client:
            async with client:
                with pytest.raises(ModelUnavailable, match="service unreachable"):
                    await client.info()


async def test_the_key_of_a_runner_calls_nothing(node: Node, cluster: Cluster) -> None:
    stolen = cluster.runner_identity("a", "p")
    record = await node.run(await node.start_request())

    async def register() -> None:
        async with open_channel(node.discovery_address, "discovery") as channel:
            await discovery_pb2_grpc.DiscoveryStub(channel).Register().read()

    async def read_blob() -> None:
        async with open_channel(node.address, "node/a") as channel:
            async for _ in store_pb2_grpc.ModelStoreStub(channel).ReadBlob(store_pb2.ReadBlobRequest()):
                pass

    async def use_identity() -> None:
        async with open_channel(record.address, runner_peer("a", record.placement.placement_id)) as channel:
            await runner_pb2_grpc.RunnerStub(channel).UseIdentity(runner_pb2.RunnerIdentity())

    with acting_as(stolen):
        for act in (register, read_blob, use_identity):
            with pytest.raises(PermissionDenied, match="runner/a/p may not call"), domain_errors():
                async with asyncio.timeout(DEADLINE_S):
                    await act()


async def test_a_runner_takes_no_certificate_that_it_cannot_use(node: Node, cluster: Cluster) -> None:
    record = await node.run(await node.start_request())
    before = shown_by(record.address, cluster)
    with acting_as(cluster.identity("node/a")):
        channel = open_channel(record.address, runner_peer("a", record.placement.placement_id))
    async with channel:
        with pytest.raises(InvalidRequest, match="no certificate"), domain_errors():
            await runner_pb2_grpc.RunnerStub(channel).UseIdentity(runner_pb2.RunnerIdentity(certificate=b"x", key=b"y"))
    assert read_facts(shown_by(record.address, cluster)).name == read_facts(before).name


async def test_a_runners_certificate_is_renewed_under_a_running_stream(node: Node, cluster: Cluster) -> None:
    record = await node.run(await node.start_request())
    first = shown_by(record.address, cluster)
    endless = runner_pb2.GenerateRequest(
        prompt=[runner_pb2.Segment(text="Hello")], add_bos=True, shift=True, ignore_eos=True, max_tokens=1_000_000
    )
    with gateway_of(cluster, record) as client:
        async with client:
            events = aiter(client.generate(endless))
            await anext(events)
            cluster.authority.rotate()
            cluster.directory("node/a")
            await node.host.event("runner.certificate_renewed")
            for _ in range(20):
                async with asyncio.timeout(DEADLINE_S):
                    await anext(events)
    second = shown_by(record.address, cluster)
    assert issuer_of(first) == issuer_of(second) == "node/a"
    assert first != second
    (accepted,) = [one for one in cluster.authority.issued() if one.name.node_id == "a"]
    assert read_facts(second).valid_to_unix_s == accepted.valid_to_unix_s


def issuer_of(certificate: bytes) -> str:
    issuer = x509.load_pem_x509_certificate(certificate).issuer
    return str(issuer.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


async def test_an_adopted_runner_gets_a_certificate_of_the_next_host(node: Node, cluster: Cluster) -> None:
    record = await node.run(await node.start_request())
    first = shown_by(record.address, cluster)
    node.host.process.kill()
    await node.host.end()
    await node.restart_host()
    await node.inventory(lambda seen: any(one.status.state == READY for one in runners_of(seen)))
    await node.host.event("runner.certificate_renewed")
    await until(lambda: shown_by(record.address, cluster) != first, what="the runner shows another certificate")
    with gateway_of(cluster, record) as client:
        async with client:
            assert (await client.info()).placement == record.placement


def test_an_identity_that_cannot_be_used_leaves_the_one_before(cluster: Cluster) -> None:
    held = cluster.runner_identity("a", "p")
    before = held.material()
    assert isinstance(held, HeldIdentity)
    other = Cluster(cluster.authority.directory / "other").runner_identity("a", "p").material()
    with pytest.raises(Exception, match="another cluster"):
        held.replace(before.authorities, other.pair)
    assert held.material() is before
