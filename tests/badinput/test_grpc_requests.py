"""IN34: what the gRPC listener makes of noise, of wrong methods and of wrong messages. Never INTERNAL."""

import contextlib
import socket
import struct
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from protos import inference_pb2, inference_pb2_grpc
from tests.gateway_process import GatewayProcess, gateway_process

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
CHAT = "/puna.v1.Inference/Chat"
CODE = grpc.StatusCode


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with gateway_process(tmp_path_factory.mktemp("grpc")) as running:
        yield running


@pytest.fixture(scope="module")
def channel(gateway: GatewayProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(gateway.grpc_address) as open_channel:
        yield open_channel


def code_of_bytes(channel: grpc.Channel, method: str, message: bytes, timeout_s: float = 10.0) -> grpc.StatusCode:
    """Send raw bytes as the message of a streaming method and return the status code."""
    call = channel.unary_stream(method, request_serializer=bytes, response_deserializer=bytes)
    try:
        for _ in call(message, timeout=timeout_s):
            pass
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return CODE.OK


def question(**fields: Any) -> inference_pb2.ChatRequest:
    message = inference_pb2.ChatMessage(role="user", content="Hello")
    return inference_pb2.ChatRequest(**{"model": "demo", "messages": [message], **fields})


@pytest.mark.parametrize(
    ("what", "method", "message", "code"),
    [
        ("good", CHAT, question().SerializeToString(), CODE.OK),
        ("a field of the future", CHAT, question().SerializeToString() + b"\xfa\x7f\x04abcd", CODE.OK),
        ("nothing", CHAT, b"", CODE.INVALID_ARGUMENT),
        ("unknown method", "/puna.v1.Inference/Nothing", b"", CODE.UNIMPLEMENTED),
        ("unknown service", "/puna.v1.Scheduler/EnsureModel", b"", CODE.UNIMPLEMENTED),
        ("no model", CHAT, question(model="").SerializeToString(), CODE.INVALID_ARGUMENT),
        ("unknown model", CHAT, question(model="nobody").SerializeToString(), CODE.NOT_FOUND),
        ("path for a model", CHAT, question(model="../../etc").SerializeToString(), CODE.NOT_FOUND),
        ("33 MiB", CHAT, question(model="x" * (33 * 2**20)).SerializeToString(), CODE.RESOURCE_EXHAUSTED),
    ],
    ids=lambda value: value if isinstance(value, str) and "/" not in value else "",
)
def test_each_message_gets_its_status(
    channel: grpc.Channel, what: str, method: str, message: bytes, code: grpc.StatusCode
) -> None:
    assert code_of_bytes(channel, method, message) is code, what


@pytest.mark.parametrize(
    "message", [b"\xff" * 20, b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x05ab", b"\x0a\x02\xff\xfe", b"\x00"]
)
def test_bytes_that_are_no_message_are_refused(channel: grpc.Channel, message: bytes) -> None:
    assert code_of_bytes(channel, CHAT, message) is CODE.INVALID_ARGUMENT


def test_deadlines_of_nothing_and_of_a_year(channel: grpc.Channel) -> None:
    good = question().SerializeToString()
    assert code_of_bytes(channel, CHAT, good, timeout_s=0) is CODE.DEADLINE_EXCEEDED
    assert code_of_bytes(channel, CHAT, good, timeout_s=365 * 86_400) is CODE.OK


def test_noise_cut_frames_and_long_prefixes_end_their_connection_and_nothing_else(
    gateway: GatewayProcess, channel: grpc.Channel
) -> None:
    host, _, port = gateway.grpc_address.rpartition(":")
    frame = struct.pack(">BHBBI", 0, 40, 0, 0, 1)
    flood = b"".join(struct.pack(">BHBBII", 0, 4, 3, 0, 2 * number + 1, 8) for number in range(1000))
    for noise in (b"\0" * 4096, b"GET / HTTP/1.1\r\n\r\n", PREFACE + b"\xff" * 999, PREFACE + frame, PREFACE + flood):
        with socket.create_connection((host, int(port)), timeout=60) as peer, contextlib.suppress(OSError):
            peer.sendall(noise)
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(65536):
                pass
    stub = inference_pb2_grpc.InferenceStub(channel)
    assert [model.model.name for model in stub.ListModels(inference_pb2.ListModelsRequest(), timeout=60).models]
    assert gateway.is_alive()
