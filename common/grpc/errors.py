"""Domain errors over gRPC: out as google.rpc.Status with ErrorInfo, in again as the same Python type."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message as ProtoMessage
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc import aio
from grpc_status import rpc_status

from common.errors import (
    InternalError,
    ModelUnavailable,
    PunaError,
    RequestCanceled,
    RequestTimeout,
    StaleFence,
    error_types,
    row_of,
)
from protos import host_pb2

DOMAIN = "puna"
# Beginning of the text of a call that reached no server; the rest names addresses.
UNREACHABLE = "service unreachable"

Message = TypeVar("Message")


def to_status(error: PunaError) -> grpc.Status:
    """Return the gRPC status of a domain error, with ErrorInfo (reason, param) and further details where they apply."""
    return rpc_status.to_status(_status(error))


def to_bytes(error: PunaError) -> bytes:
    """Return the status of a domain error for a message, where it does not end the call."""
    data: bytes = _status(error).SerializeToString()
    return data


def from_bytes(data: bytes) -> PunaError:
    """Return the domain error of such a status, or the nearest one for reasons of newer builds."""
    status = status_pb2.Status.FromString(data)
    code = next((one for one in grpc.StatusCode if one.value[0] == status.code), grpc.StatusCode.UNKNOWN)
    return _from_status(status) or _from_transport(code, status.message)


def _status(error: PunaError) -> status_pb2.Status:
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    if error.param is not None:
        info.metadata["param"] = error.param
    details = [_packed(info)]
    if error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(round(error.retry_after_s * 1000))
        details.append(_packed(error_details_pb2.RetryInfo(retry_delay=delay)))
    if isinstance(error, StaleFence):
        details.append(_packed(host_pb2.StaleFenceDetail(high_water=error.high_water)))
    code = code_pb2.Code.Value(row_of(error).grpc.name)
    return status_pb2.Status(code=code, message=error.message, details=details)


def from_rpc_error(error: aio.AioRpcError) -> PunaError:
    """Return the domain error that the other side raised, or the nearest one for errors of the transport."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]  # the stub knows only the sync call type
    found = _from_status(status) if status is not None else None
    return found or _from_transport(error.code(), error.details() or error.code().name)


def _from_status(status: status_pb2.Status) -> PunaError | None:
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    fence = host_pb2.StaleFenceDetail()
    for detail in status.details:
        if detail.Is(info.DESCRIPTOR):
            detail.Unpack(info)
        elif detail.Is(retry.DESCRIPTOR):
            detail.Unpack(retry)
        elif detail.Is(fence.DESCRIPTOR):
            detail.Unpack(fence)
    kind = error_types().get(info.reason) if info.domain == DOMAIN else None
    if kind is None:
        return None
    retry_after_s = retry.retry_delay.ToMilliseconds() / 1000 if retry.HasField("retry_delay") else None
    found = kind(status.message, param=info.metadata.get("param"), retry_after_s=retry_after_s)
    if isinstance(found, StaleFence):
        found.high_water = fence.high_water
    return found


def _from_transport(code: grpc.StatusCode, text: str) -> PunaError:
    match code:
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return RequestTimeout("request timed out")
        case grpc.StatusCode.CANCELLED:
            return RequestCanceled("request canceled")
        case grpc.StatusCode.UNAVAILABLE:
            return ModelUnavailable(f"{UNREACHABLE}: {text}", retry_after_s=1.0)
        case _:
            return InternalError(text)


@contextmanager
def domain_errors() -> Iterator[None]:
    """Turn gRPC errors of the calls inside into domain errors."""
    try:
        yield
    except aio.AioRpcError as error:
        raise from_rpc_error(error) from error


async def received(
    call: "aio.UnaryStreamCall[Any, Message] | aio.StreamStreamCall[Any, Message]",
) -> AsyncGenerator[Message, None]:
    """Yield the messages of a streaming call; raise domain errors instead of gRPC ones.

    Leaving the iteration cancels the call: at once where this generator is closed (`contextlib.aclosing`).
    """
    try:
        with domain_errors():
            async for message in call:
                yield message
    finally:
        call.cancel()


def _packed(message: ProtoMessage) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed
