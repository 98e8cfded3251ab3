"""Each launch setting reaches the engine's parameter of its own, and no other."""

import ctypes
import re
from dataclasses import replace
from typing import Any

import pytest

from common.errors import InvalidRequest
from common.spec.layout import DRAFTED_TOKENS_MAX, DeviceLayers, FlashAttention, Layout, SplitMode
from runner.core.layout.layout import resolve_layout
from runner.engine.bindings import ggml
from runner.engine.llama.parameters import context_parameters, model_parameters

POINTERS = {"gpu-a": 0x1000, "gpu-b": 0x2000}
PAIR = (DeviceLayers("gpu-a", 3), DeviceLayers("gpu-b", 5))


def resolved(**fields: Any) -> Layout:
    fields = {"slots": 4, "context_tokens": 1024, "batch_tokens": 256, "threads": 2, **fields}
    return resolve_layout(Layout(**fields), trained_context_tokens=0, cpu_threads=1).layout


def values(struct: Any) -> dict[str, Any]:
    """The plain fields of a parameter struct."""
    fields = {}
    for name, kind in struct._fields_:
        if kind in (ctypes.c_int32, ctypes.c_uint32, ctypes.c_int, ctypes.c_float, ctypes.c_bool):
            fields[name] = getattr(struct, name)
    return fields


def changed(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in after.items() if value != before[name]}


@pytest.mark.behaviour("B-19")
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"context_tokens": 2048}, {"n_ctx": 8192}),
        ({"slots": 8}, {"n_ctx": 8192, "n_seq_max": 8, "n_outputs_max": 8 + DRAFTED_TOKENS_MAX}),
        ({"batch_tokens": 512}, {"n_batch": 512, "n_ubatch": 512}),
        ({"batch_tokens": 2}, {"n_batch": 4, "n_ubatch": 4, "n_outputs_max": 4}),
        ({"rollback_tokens": 3}, {"n_rs_seq": 3}),
        ({"rollback_tokens": 3, "batch_tokens": 4}, {"n_batch": 4, "n_ubatch": 4, "n_outputs_max": 4, "n_rs_seq": 2}),
        ({"threads": 7}, {"n_threads": 7, "n_threads_batch": 7}),
        ({"cache_type_k": "q8_0"}, {"type_k": 8}),
        ({"cache_type_v": "q4_0"}, {"type_v": 2}),
        ({"flash_attention": FlashAttention.ON}, {"flash_attn_type": 1}),
        ({"flash_attention": FlashAttention.OFF}, {"flash_attn_type": 0}),
        ({"use_mmap": True}, {}),
        ({"devices": (DeviceLayers("gpu-a", 3),)}, {}),
        ({"ubatch_tokens": 32}, {"n_ubatch": 32}),
        ({"ubatch_tokens": 1024}, {}),
        ({"pipeline": True, "devices": PAIR}, {"n_batch": 1024}),
        ({"op_offload": False}, {"op_offload": False}),
        ({"op_offload": True}, {}),
        ({"output_on_host": True, "devices": PAIR}, {}),
        ({"experts_on_host": 2, "devices": PAIR}, {}),
        ({"split_mode": SplitMode.ROW, "devices": PAIR}, {}),
        ({"main_device": 1, "devices": PAIR}, {}),
    ],
)
def test_context_settings(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    before, after = values(context_parameters(resolved())), values(context_parameters(resolved(**fields)))
    assert changed(before, after) == expected


@pytest.mark.behaviour("B-19")
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"use_mmap": True}, {"load_mode": 1}),
        ({"use_mmap": False}, {"load_mode": 0}),
        ({"devices": (DeviceLayers("gpu-a", 3),)}, {"n_gpu_layers": 3}),
        ({"devices": (DeviceLayers("gpu-a", 3), DeviceLayers("gpu-b", 5))}, {"n_gpu_layers": 8}),
        ({"context_tokens": 2048}, {}),
        ({"threads": 7}, {}),
        ({"ubatch_tokens": 32}, {}),
        ({"op_offload": False}, {}),
        ({"devices": PAIR, "split_mode": SplitMode.ROW}, {"n_gpu_layers": 8, "split_mode": 2}),
        ({"devices": PAIR, "main_device": 1}, {"n_gpu_layers": 8, "main_gpu": 1}),
        ({"devices": PAIR, "output_on_host": True}, {"n_gpu_layers": 9}),
        ({"devices": PAIR, "experts_on_host": 2}, {"n_gpu_layers": 8}),
        ({"devices": PAIR, "pipeline": True}, {"n_gpu_layers": 8}),
    ],
)
def test_model_settings(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    before = values(model_parameters(resolved(), POINTERS).struct)
    after = values(model_parameters(resolved(**fields), POINTERS).struct)
    assert changed(before, after) == expected


@pytest.mark.behaviour("B-19")
def test_devices_come_in_the_order_of_the_layout_with_their_share_of_layers() -> None:
    parameters = model_parameters(resolved(devices=(DeviceLayers("gpu-b", 5), DeviceLayers("gpu-a", 3))), POINTERS)
    devices = ctypes.cast(parameters.struct.devices, ctypes.POINTER(ctypes.c_void_p))
    assert [devices[index] for index in range(3)] == [0x2000, 0x1000, None]
    assert [parameters.struct.tensor_split[index] for index in range(3)] == [5.0, 3.0, 0.0]


def overrides(**fields: Any) -> list[str]:
    """Patterns of the tensors that are sent to host RAM."""
    parameters = model_parameters(resolved(**fields), POINTERS)
    array = ctypes.cast(parameters.struct.tensor_buft_overrides, ctypes.POINTER(ggml.TensorOverride))
    found: list[str] = []
    while array[len(found)].pattern is not None:
        assert array[len(found)].buffer_type == ggml.cpu_buffer_type()
        found.append((array[len(found)].pattern or b"").decode())
    return found


TENSORS = [
    *("token_embd.weight", "output_norm.weight", "output.weight"),
    *("blk.0.attn_output.weight", "blk.0.ffn_down_exps.weight", "blk.1.ffn_gate_up_exps.weight"),
    *("blk.2.ffn_up_exps.weight", "blk.10.ffn_up_exps.weight", "blk.0.ffn_down.weight", "blk.1.ffn_up_chexps.weight"),
]


@pytest.mark.behaviour("B-19")
@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({}, []),
        ({"devices": PAIR}, []),
        ({"devices": PAIR, "pipeline": True}, []),
        ({"devices": PAIR, "output_on_host": True}, TENSORS[:3]),
        ({"devices": PAIR, "experts_on_host": 1}, TENSORS[4:5]),
        ({"devices": PAIR, "experts_on_host": 2}, [*TENSORS[4:6], TENSORS[9]]),
        (
            {"devices": PAIR, "experts_on_host": 2, "output_on_host": True},
            [*TENSORS[:3], *TENSORS[4:6], TENSORS[9]],
        ),
    ],
)
def test_exactly_the_named_tensors_are_sent_to_host_ram(fields: dict[str, Any], sent: list[str]) -> None:
    patterns = overrides(**fields)
    assert [name for name in TENSORS if any(re.search(pattern, name) for pattern in patterns)] == sent


@pytest.mark.behaviour("B-06", "B-19")
def test_several_devices_pipeline_only_where_no_tensor_is_sent_anywhere() -> None:
    assert overrides(devices=PAIR, pipeline=True) == []
    assert len(overrides(devices=PAIR)) == 1
    assert overrides(devices=PAIR[:1]) == []


@pytest.mark.behaviour("B-19")
def test_without_devices_the_engine_may_use_none() -> None:
    parameters = model_parameters(resolved(), POINTERS)
    devices = ctypes.cast(parameters.struct.devices, ctypes.POINTER(ctypes.c_void_p))
    assert devices[0] is None
    assert parameters.struct.n_gpu_layers == 0


@pytest.mark.behaviour("B-19")
def test_a_device_that_is_not_here_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="gpu-c"):
        model_parameters(resolved(devices=(DeviceLayers("gpu-c", 1),)), POINTERS)


@pytest.mark.behaviour("B-16", "B-30", "B-37")
def test_contexts_share_their_cells_unless_told_keep_small_windows_and_offload_large_batches() -> None:
    parameters = context_parameters(resolved())
    assert parameters.kv_unified
    assert not context_parameters(replace(resolved(), separate_caches=True)).kv_unified
    assert not parameters.swa_full
    assert parameters.op_offload
    assert parameters.offload_kqv


def test_every_resolved_field_is_covered_here() -> None:
    # A field that this list does not name is a launch setting without a test.
    known = {
        "devices",
        "context_tokens",
        "slots",
        "batch_tokens",
        "cache_type_k",
        "cache_type_v",
        "flash_attention",
        "threads",
        "use_mmap",
        "engine",
        "projector_digest",
        "adapters",
        "pipeline",
        "output_on_host",
        "experts_on_host",
        "split_mode",
        "main_device",
        "op_offload",
        "ubatch_tokens",
        "draft_digest",
        "rollback_tokens",
    }
    decided_by_the_runner = {"separate_caches"}
    assert set(Layout.__dataclass_fields__) - decided_by_the_runner == known
