"""Numbers in messages that no sender can mean."""

import importlib
import math
from pathlib import Path

import pytest
from google.protobuf.message import Message
from grpc import aio

from common.errors import InvalidRequest
from common.grpc.client import open_channel
from common.grpc.errors import domain_errors
from common.grpc.ranges import find_out_of_range
from common.grpc.server import bind_server
from protos import cluster_pb2, host_pb2, host_pb2_grpc, runner_pb2, scheduler_pb2

GIB = 2**30


TWO_DEVICES = cluster_pb2.MemoryReport(
    devices=[cluster_pb2.DeviceMemory(), cluster_pb2.DeviceMemory(layer_cache_bytes=[1, 2**61])]
)


@pytest.mark.parametrize(
    ("message", "path"),
    [
        (cluster_pb2.Device(total_bytes=2**60 + 1), "total_bytes"),
        (cluster_pb2.Device(speed_bytes_s=2**64 - 1), "speed_bytes_s"),
        (cluster_pb2.Model(modified_at_unix_s=2**63 - 1), "modified_at_unix_s"),
        (cluster_pb2.Model(modified_at_unix_s=-(2**63)), "modified_at_unix_s"),
        (cluster_pb2.RunnerStatus(load_fraction=1.5), "load_fraction"),
        (cluster_pb2.RunnerStatus(load_fraction=-0.5), "load_fraction"),
        (cluster_pb2.RunnerStatus(prompt_tokens_per_s=math.inf), "prompt_tokens_per_s"),
        (cluster_pb2.RunnerStatus(slots_total=2**31), "slots_total"),
        (cluster_pb2.RunnerStatus(memory=TWO_DEVICES), "memory.devices[1].layer_cache_bytes"),
        (cluster_pb2.ModelDescription(context_tokens=2**32 - 1), "context_tokens"),
        (host_pb2.StartRequest(layout=cluster_pb2.Layout(context_tokens=2**31)), "layout.context_tokens"),
        (host_pb2.StartRequest(placement=cluster_pb2.PlacementRef(generation=2**64 - 1)), "placement.generation"),
        (cluster_pb2.Layout(adapters=[cluster_pb2.Adapter(scale=math.nan)]), "adapters[0].scale"),
        (runner_pb2.Sampling(logit_bias={7: math.inf}), "logit_bias"),
        (scheduler_pb2.Constraints(max_bytes={"cpu": 2**63}), "max_bytes"),
        (scheduler_pb2.Constraints(keep_alive_ms=-(2**63)), "keep_alive_ms"),
    ],
)
def test_an_impossible_number_is_named_with_its_field(message: Message, path: str) -> None:
    found = find_out_of_range(message)
    assert found is not None
    assert found.path == path
    assert f'"{path}" must be' in str(found)


@pytest.mark.parametrize(
    "message",
    [
        cluster_pb2.Device(total_bytes=2**60, free_bytes=GIB, check_exit_code=-11),
        cluster_pb2.Model(modified_at_unix_s=-1, digest="d"),
        cluster_pb2.RunnerStatus(load_fraction=1.0, keep_alive_ms=-1, requests_total=2**64 - 1),
        cluster_pb2.ModelDescription(parameter_count=2**41, context_tokens=10_485_760),
        runner_pb2.Sampling(seed=2**64 - 1, top_k=-1, logit_bias={7: -100.0}),
        scheduler_pb2.Constraints(priority=-5, keep_alive_ms=-1),
        cluster_pb2.HeldPrefixes(names=[2**64 - 1]),
    ],
)
def test_numbers_that_can_be_meant_pass(message: Message) -> None:
    assert find_out_of_range(message) is None


def test_every_message_can_be_checked() -> None:
    for name in ("cluster", "discovery", "host", "inference", "probe", "runner", "scheduler", "store"):
        module = importlib.import_module(f"protos.{name}_pb2")
        for message in module.DESCRIPTOR.message_types_by_name:
            assert find_out_of_range(getattr(module, message)()) is None


async def test_a_server_refuses_a_request_with_an_impossible_number(tmp_path: Path) -> None:
    class Obedient(host_pb2_grpc.HostServicer):
        async def Stop(self, request, context):  # type: ignore[no-untyped-def]  # noqa: N802
            return host_pb2.StopResponse()

        async def Start(self, request, context):  # type: ignore[no-untyped-def]  # noqa: N802
            yield host_pb2.StartEvent()

    def register(server: aio.Server) -> None:
        host_pb2_grpc.add_HostServicer_to_server(Obedient(), server)  # type: ignore[abstract]

    server = bind_server(f"unix:{tmp_path}/h", register=register, services=[])
    await server.start()
    try:
        async with open_channel(server.address) as channel:
            stub = host_pb2_grpc.HostStub(channel)
            for generation, refused in ((7, False), (2**64 - 1, True)):
                placement = cluster_pb2.PlacementRef(placement_id="p", generation=generation)
                if not refused:
                    await stub.Stop(host_pb2.StopRequest(placement=placement))
                    assert [one async for one in stub.Start(host_pb2.StartRequest(placement=placement))]
                    continue
                with pytest.raises(InvalidRequest, match=r"placement\.generation") as caught, domain_errors():
                    await stub.Stop(host_pb2.StopRequest(placement=placement))
                assert caught.value.param == "generation"
                with pytest.raises(InvalidRequest, match=r"placement\.generation"), domain_errors():
                    await stub.Start(host_pb2.StartRequest(placement=placement)).read()
    finally:
        await server.stop(0)
