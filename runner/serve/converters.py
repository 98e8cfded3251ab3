"""Protos to the runner's own values and back. Nothing else here."""

from google.protobuf import json_format

from common.clock import MS_PER_S
from common.errors import InvalidRequest
from protos import cluster_pb2, runner_pb2
from runner.core.devices.devices import CPU_ID
from runner.core.layout.layout import FlashAttention, LaunchLayout, LayoutAdapter, LayoutDevice, SplitMode
from runner.core.layout.memory_report import ClassBytes, MemoryUse
from runner.core.sequence.decode_windows import StepReads, Window
from runner.core.sequence.dry import Breakers
from runner.core.sequence.endings import EndReason
from runner.core.sequence.requests import KEEP_TOKENS_DEFAULT, GenerationRequest
from runner.core.sequence.sampling import SamplingParameters
from runner.core.sequence.text_stream import TextToken
from runner.engine.contract.engine import TokenTable
from runner.serve.constraints import Constraints
from runner.serve.prompts import TokenizedPrompt, tokenize_prompt

_FLASH_ATTENTION = {
    cluster_pb2.FLASH_ATTENTION_UNSPECIFIED: FlashAttention.AUTO,
    cluster_pb2.FLASH_ATTENTION_AUTO: FlashAttention.AUTO,
    cluster_pb2.FLASH_ATTENTION_ON: FlashAttention.ON,
    cluster_pb2.FLASH_ATTENTION_OFF: FlashAttention.OFF,
}
_FLASH_ATTENTION_PROTO = {
    FlashAttention.AUTO: cluster_pb2.FLASH_ATTENTION_AUTO,
    FlashAttention.ON: cluster_pb2.FLASH_ATTENTION_ON,
    FlashAttention.OFF: cluster_pb2.FLASH_ATTENTION_OFF,
}
_SPLIT_MODES = {
    cluster_pb2.SPLIT_MODE_UNSPECIFIED: SplitMode.LAYER,
    cluster_pb2.SPLIT_MODE_LAYER: SplitMode.LAYER,
    cluster_pb2.SPLIT_MODE_ROW: SplitMode.ROW,
}
_SPLIT_MODES_PROTO = {
    SplitMode.LAYER: cluster_pb2.SPLIT_MODE_LAYER,
    SplitMode.ROW: cluster_pb2.SPLIT_MODE_ROW,
}
DONE_REASONS = {
    EndReason.END_TOKEN: runner_pb2.DONE_REASON_END_TOKEN,
    EndReason.STOP_STRING: runner_pb2.DONE_REASON_STOP_STRING,
    EndReason.LENGTH: runner_pb2.DONE_REASON_LENGTH,
}


def parse_layout(text: str) -> LaunchLayout:
    """A layout from its proto JSON.

    Raises:
        InvalidRequest: not JSON, or not of this shape.
    """
    try:
        return layout_from_proto(json_format.Parse(text, cluster_pb2.Layout()))
    except json_format.ParseError as error:
        raise InvalidRequest(f"layout: {error}") from error


def layout_from_proto(layout: cluster_pb2.Layout) -> LaunchLayout:
    """A layout as the engine takes it; unset fields stay open."""
    return LaunchLayout(
        devices=tuple(
            LayoutDevice(
                id=device.device_id,
                layers=device.layer_count,
                rpc_address=device.rpc_address,
                rpc_device=device.rpc_device,
            )
            for device in layout.devices
        ),
        context_tokens=layout.context_tokens,
        slots=layout.slots,
        batch_tokens=layout.batch_tokens,
        cache_type_k=layout.cache_type_k,
        cache_type_v=layout.cache_type_v,
        flash_attention=_FLASH_ATTENTION.get(layout.flash_attention, FlashAttention.AUTO),
        threads=layout.threads,
        use_mmap=layout.use_mmap if layout.HasField("use_mmap") else None,
        engine=layout.engine,
        projector_digest=layout.projector_digest,
        adapters=tuple(LayoutAdapter(digest=one.digest, scale=one.scale) for one in layout.adapters),
        pipeline=layout.pipeline,
        output_on_host=layout.output_on_host,
        experts_on_host=layout.experts_on_host,
        split_mode=_SPLIT_MODES.get(layout.split_mode, SplitMode.LAYER),
        main_device=layout.main_device,
        op_offload=layout.op_offload if layout.HasField("op_offload") else None,
        ubatch_tokens=layout.ubatch_tokens,
    )


def layout_to_proto(layout: LaunchLayout) -> cluster_pb2.Layout:
    """A layout as others see it."""
    return cluster_pb2.Layout(
        devices=[
            cluster_pb2.DeviceLayers(
                device_id=device.id,
                layer_count=device.layers,
                rpc_address=device.rpc_address,
                rpc_device=device.rpc_device,
            )
            for device in layout.devices
        ],
        context_tokens=layout.context_tokens,
        slots=layout.slots,
        batch_tokens=layout.batch_tokens,
        cache_type_k=layout.cache_type_k,
        cache_type_v=layout.cache_type_v,
        flash_attention=_FLASH_ATTENTION_PROTO[layout.flash_attention],
        threads=layout.threads,
        use_mmap=layout.use_mmap,
        engine=layout.engine,
        projector_digest=layout.projector_digest,
        adapters=[cluster_pb2.Adapter(digest=one.digest, scale=one.scale) for one in layout.adapters],
        pipeline=layout.pipeline,
        output_on_host=layout.output_on_host,
        experts_on_host=layout.experts_on_host,
        split_mode=_SPLIT_MODES_PROTO[layout.split_mode],
        main_device=layout.main_device,
        op_offload=layout.op_offload,
        ubatch_tokens=layout.ubatch_tokens,
    )


def memory_to_proto(
    use: MemoryUse, origin: "cluster_pb2.MemoryOrigin.ValueType" = cluster_pb2.MEMORY_ORIGIN_ALLOCATED
) -> cluster_pb2.MemoryReport:
    """What a loaded model holds, or one that was only counted."""
    return cluster_pb2.MemoryReport(
        origin=origin,
        devices=[_class_bytes(device_id, count) for device_id, count in use.devices],
        host=_class_bytes("", use.host),
    )


def window_to_proto(window: Window, reads: StepReads, layout: cluster_pb2.Layout) -> cluster_pb2.DecodeWindow:
    """What decode steps showed, by device of the layout that the model was loaded with."""
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
    return cluster_pb2.DeviceMemory(
        device_id=device_id,
        weights_bytes=count.weights_bytes,
        cache_bytes=count.cache_bytes,
        graph_bytes=count.graph_bytes,
        layer_weights_bytes=count.layer_weights_bytes,
        layer_cache_bytes=count.layer_cache_bytes,
        input_weights_bytes=count.input_weights_bytes,
        projector_bytes=count.projector_bytes,
    )


def sampling_from_proto(sampling: runner_pb2.Sampling, breakers: Breakers | None = None) -> SamplingParameters:
    """Sampling parameters; unset fields take the defaults of the protocol. `breakers` are what ends a repetition."""
    optional = (
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "repeat_last_n",
        "repeat_penalty",
        "presence_penalty",
        "frequency_penalty",
        "dry_multiplier",
        "dry_base",
        "dry_allowed_length",
        "dry_penalty_last_n",
        "xtc_probability",
        "xtc_threshold",
        "top_n_sigma",
    )
    given = {name: getattr(sampling, name) for name in optional if sampling.HasField(name)}  # type: ignore[arg-type]
    return SamplingParameters(
        **given, seed=sampling.seed, logit_bias=dict(sampling.logit_bias), dry_breakers=breakers or {}
    )


def request_from_proto(
    request: runner_pb2.GenerateRequest, prompt: TokenizedPrompt, constraints: Constraints
) -> GenerationRequest:
    """A request as the engine takes it, with its prompt already tokenized and its constraint read."""
    return GenerationRequest(
        prompt=tuple(prompt.ids),
        boundaries=prompt.boundaries,
        images=tuple(image.salted(request.cache_salt) for image in prompt.images),
        sampling=sampling_from_proto(request.sampling, constraints.breakers),
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
        resumed=tuple(request.resume_token_ids),
        ignore_eos=request.ignore_eos,
    )


def token_to_proto(token: TextToken, pieces: list[bytes]) -> runner_pb2.Token:
    """A generated token with its own bytes, shown or not."""
    logprobs = token.logprobs
    if logprobs is None:
        return runner_pb2.Token(id=token.token_id, piece=pieces[token.token_id])
    return runner_pb2.Token(
        id=token.token_id,
        piece=pieces[token.token_id],
        logprob=logprobs.chosen,
        top=[
            runner_pb2.Alternative(id=token_id, piece=pieces[token_id], logprob=logprob)
            for token_id, logprob in logprobs.top
        ],
    )


def tokenize_segments(segments: list[runner_pb2.Segment], *, add_bos: bool, vocabulary: TokenTable) -> list[int]:
    """Token ids of segments alone; see `tokenize_prompt`.

    Raises:
        InvalidRequest: as there.
    """
    return tokenize_prompt(segments, add_bos=add_bos, vocabulary=vocabulary).ids
