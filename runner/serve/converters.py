"""Protos to the runner's own values and back. Nothing else here."""

from collections.abc import Sequence
from dataclasses import asdict

from google.protobuf import json_format

from common.clock import MS_PER_S
from common.errors import InvalidRequest
from common.spec import codecs
from common.spec.layout import DRAFTED_TOKENS_MAX, Layout
from protos import cluster_pb2, runner_pb2
from runner.core.devices.devices import CPU_ID
from runner.core.layout.memory_report import ClassBytes, MemoryUse
from runner.core.sequence.decode_windows import StepReads, Window
from runner.core.sequence.requests import KEEP_TOKENS_DEFAULT, GenerationRequest, TokenizedPrompt
from runner.core.sequence.sequence_names import SequenceNames
from runner.core.sequence.text_stream import TextToken
from runner.serve.constraints import EngineConstraints


def parse_layout(text: str) -> Layout:
    """Read a layout from its proto JSON.

    Raises:
        InvalidRequest: not JSON, or not of this shape.
    """
    try:
        return codecs.LAYOUT.from_proto(json_format.Parse(text, cluster_pb2.Layout()))
    except json_format.ParseError as error:
        raise InvalidRequest(f"layout: {error}") from error


def memory_to_proto(
    use: MemoryUse, origin: "cluster_pb2.MemoryOrigin.ValueType" = cluster_pb2.MEMORY_ORIGIN_ALLOCATED
) -> cluster_pb2.MemoryReport:
    """Convert the memory of a loaded model, or of one that was only counted."""
    return cluster_pb2.MemoryReport(
        origin=origin,
        devices=[_class_bytes(device_id, count) for device_id, count in use.devices],
        host=_class_bytes("", use.host),
    )


def window_to_proto(window: Window, reads: StepReads, layout: cluster_pb2.Layout) -> cluster_pb2.DecodeWindow:
    """Convert a window of decode steps, by device of the layout that the model was loaded with."""
    ids = [device.device_id for device in layout.devices]
    return cluster_pb2.DecodeWindow(
        number=window.number,
        steps=window.steps,
        span_ms=round(window.span_s * MS_PER_S),
        bytes_s=window.bytes_s,
        reads=[
            cluster_pb2.WeightsRead(device_id=CPU_ID if place is None else ids[place], bytes=size)
            for place, size in reads.weights
        ],
    )


def _class_bytes(device_id: str, count: ClassBytes) -> cluster_pb2.DeviceMemory:
    return cluster_pb2.DeviceMemory(device_id=device_id, **asdict(count))


def request_from_proto(
    request: runner_pb2.GenerateRequest,
    prompt: TokenizedPrompt,
    constraints: EngineConstraints,
    names: SequenceNames | None = None,
) -> GenerationRequest:
    """Build a request as the engine takes it: its prompt already tokenized and named, its constraint read."""
    return GenerationRequest(
        prompt=prompt,
        sampling=codecs.SAMPLING.from_proto(request.sampling),
        breakers=constraints.breakers or {},
        grammar=constraints.grammar,
        reasoning=constraints.reasoning,
        max_tokens=request.max_tokens if request.HasField("max_tokens") else None,
        top_logprobs=request.top_logprobs if request.HasField("top_logprobs") else None,
        context_tokens=request.context_tokens if request.HasField("context_tokens") else None,
        keep_tokens=request.keep_tokens if request.HasField("keep_tokens") else KEEP_TOKENS_DEFAULT,
        truncate=request.truncate,
        shift=request.shift,
        cache_prompt=request.cache_prompt if request.HasField("cache_prompt") else True,
        cache_salt=request.cache_salt,
        names=names,
        band=codecs.BAND.from_proto(request.band),
        state_node_id=request.state_node_id,
        resumed=tuple(request.resume_token_ids),
        ignore_eos=request.ignore_eos,
        speculates=request.speculates,
        speculative_tokens=request.speculative_tokens if request.HasField("speculative_tokens") else DRAFTED_TOKENS_MAX,
    )


def write_token(token: TextToken, pieces: Sequence[bytes], message: runner_pb2.Token) -> None:
    """Write a generated token with its own bytes, shown or not, into an empty message."""
    message.id = token.token_id
    message.piece = pieces[token.token_id]
    if (logprobs := token.logprobs) is not None:
        message.logprob = logprobs.chosen
        for token_id, logprob in logprobs.top:
            message.top.add(id=token_id, piece=pieces[token_id], logprob=logprob)
