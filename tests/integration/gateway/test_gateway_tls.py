"""TLS on both listeners of a gateway, and a certificate that is renewed while it serves."""

import asyncio
import ssl
from pathlib import Path

import grpc
import httpx
import pytest
from cryptography import x509
from grpc import aio

from common.errors import StartupError
from gateway import tls
from gateway.tls import Certificate
from protos import inference_pb2, inference_pb2_grpc
from tests.certificates import write_certificate
from tests.integration.gateway.conftest import StartCluster
from tests.waiting import next_look

DEADLINE_S = 60.0


async def _serial(address: str) -> int:
    """Of the certificate that a new connection is shown."""
    host, port = address.rsplit(":", 1)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    try:
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return x509.load_der_x509_certificate(der).serial_number
    finally:
        writer.close()


async def test_both_listeners_speak_tls_and_take_a_new_certificate_without_a_restart(
    start_cluster: StartCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "LOOK_S", 0.02)
    chain, key = write_certificate(tmp_path, serial=1)
    async with start_cluster(tls_cert=chain, tls_key=key) as cluster:
        http, rpc = cluster.gateway.http_address, cluster.gateway.grpc_address
        url = f"https://localhost:{http.rsplit(':', 1)[1]}"
        async with httpx.AsyncClient(verify=ssl.create_default_context(cafile=str(chain)), timeout=60) as client:
            answer = await client.post(
                f"{url}/api/chat", json={"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
            )
            assert answer.status_code == 200
        credentials = grpc.ssl_channel_credentials(chain.read_bytes())
        async with aio.secure_channel(f"localhost:{rpc.rsplit(':', 1)[1]}", credentials) as channel:
            models = await inference_pb2_grpc.InferenceStub(channel).ListModels(inference_pb2.ListModelsRequest())
            assert models.models
        with pytest.raises(httpx.RemoteProtocolError):
            await httpx.AsyncClient(timeout=60).get(f"http://{http}/healthz")

        key.write_text("half of a renewal")
        assert [await _serial(http), await _serial(rpc)] == [1, 1]
        write_certificate(tmp_path, serial=2)
        async with asyncio.timeout(DEADLINE_S):
            while [await _serial(http), await _serial(rpc)] != [2, 2]:
                await next_look()


def test_one_without_the_other_or_what_is_no_certificate_stops_the_start(tmp_path: Path) -> None:
    chain, key = write_certificate(tmp_path, serial=1)
    with pytest.raises(StartupError, match="belong together"):
        Certificate.open(chain, None)
    key.write_text("no key")
    with pytest.raises(StartupError, match="PUNA_TLS_CERT"):
        Certificate.open(chain, key)
    assert Certificate.open(None, None) is None
