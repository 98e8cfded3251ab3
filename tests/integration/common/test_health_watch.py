"""The health service behind our interceptor, as a client that watches sees it."""

from pathlib import Path

from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.grpc.client import open_channel
from common.grpc.server import bind_server


async def test_a_watching_client_sees_the_server_begin_and_end_to_serve(tmp_path: Path) -> None:
    server = bind_server(f"unix:{tmp_path}/health.sock", register=lambda _: None, services=[])
    await server.start()
    async with open_channel(server.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch  # type: ignore[attr-defined]  # the stub lacks it
        answers = watch(health_pb2.HealthCheckRequest(), timeout=10)
        seen = [(await answers.read()).status]
        await server.set_serving(False)
        seen.append((await answers.read()).status)
        answers.cancel()
    await server.stop(0)

    assert seen == [health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING]
