"""Constraints: what people write becomes values, and values become filters."""

from dataclasses import replace
from math import inf, nan
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import InvalidRequest, StartupError
from common.spec.layout import FlashAttention
from common.spec.load_options import LoadOptions
from protos import cluster_pb2, scheduler_pb2
from scheduler.app import read_constraints_file
from scheduler.constraint_converters import from_constraints, to_constraints
from scheduler.core.values.constraint_fields import FIELD_NAMES, parse_bytes, parse_constraints, written_constraints
from scheduler.core.values.constraints import (
    NO_CONSTRAINTS,
    Constraints,
    FillPolicy,
    Shape,
    device_obstacle,
    numbered_gpus,
    unmatched,
)
from scheduler.core.values.memory import GIB
from scheduler.core.values.view import DeviceKind
from scheduler.redis_store import UNREADABLE, decode_constraints
from tests.unit.scheduler.builders import cpu, gpu, node

NODE = node("a", devices=(gpu("gpu-0"), gpu("gpu-1"), cpu()))
GPU_0, GPU_1, CPU = NODE.devices


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ({"replicas_mni": 1}, "replicas_mni"),
        ({"replicas_min": -1}, "replicas_min"),
        ({"replicas_min": 3, "replicas_max": 2}, "replicas_max"),
        ({"replicas_max": 0}, "replicas_max"),
        ({"pinned": "yes"}, "pinned"),
        ({"pinned": 1}, "pinned"),
        ({"num_ctx": 1.5}, "num_ctx"),
        ({"num_gpu": True}, "num_gpu"),
        ({"max_shape": "fast"}, "max_shape"),
        ({"policy": "both"}, "policy"),
        ({"devices": [1]}, "devices"),
        ({"devices": {"a": 1}}, "devices"),
        ({"max_bytes": "8 apples"}, "max_bytes"),
        ({"max_bytes": {"gpu-0": -1}}, "max_bytes"),
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"cache_type_k": "q9"}, "cache_type_k"),
        ({"require_gpu": True, "num_gpu": 0}, "require_gpu"),
        ({"num_gpu": 0, "max_shape": "one_device"}, "num_gpu"),
        ({"tensor_split": [1, 2], "devices": ["gpu-0"]}, "tensor_split"),
        ({"tensor_split": [0, 0], "devices": ["gpu-0", "gpu-1"]}, "tensor_split"),
        ({"priority": 99}, "priority"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(written: dict[str, object], name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_constraints(written)
    assert caught.value.param == name
    assert f'"{name}"' in caught.value.message


def test_everything_that_can_be_written_is_understood_and_written_the_same_again() -> None:
    written: dict[str, object] = {
        "nodes": ["a"],
        "devices": ["gpu-0", "a/GPU-1"],
        "backend": "CUDA",
        "max_shape": "one_node",
        "policy": "spread",
        "tensor_split": [3.0, 1.0],
        "num_gpu": 20,
        "main_gpu": 1,
        "require_gpu": True,
        "max_bytes": {"*": 8 * GIB},
        "replicas_min": 1,
        "replicas_max": 3,
        "pinned": True,
        "priority": -2,
        "preload": True,
        "keep_alive": 90.0,
        "slots": 4,
        "num_ctx": 8192,
        "num_batch": 256,
        "num_thread": 6,
        "cache_type_k": "q8_0",
        "cache_type_v": "q8_0",
        "flash_attention": "on",
        "use_mmap": False,
        "draft": "small:latest",
        "rollback_tokens": 7,
    }
    assert set(written) == set(FIELD_NAMES)
    constraints = parse_constraints(written)
    assert written_constraints(constraints) == written
    assert decode_constraints(written) == constraints
    assert to_constraints(from_constraints(constraints)) == constraints


def test_nothing_written_asks_for_nothing() -> None:
    assert parse_constraints({}) == NO_CONSTRAINTS
    assert written_constraints(NO_CONSTRAINTS) == {}
    assert to_constraints(scheduler_pb2.Constraints()) == NO_CONSTRAINTS
    assert parse_constraints({"replicas_min": 3}).replicas_max == 3


def test_a_record_of_a_newer_build_is_read_as_far_as_it_is_understood() -> None:
    assert decode_constraints({"priority": 2, "moon_phase": "full"}).priority == 2
    with pytest.raises(UNREADABLE):
        decode_constraints({"priority": "high"})


@pytest.mark.parametrize(
    ("text", "count"),
    [("8GiB", 8 * GIB), ("1.5 GiB", 3 * GIB // 2), ("500MB", 500_000_000), ("1024", 1024), (7, 7), ("2 KiB", 2048)],
)
def test_sizes_are_bytes_or_texts_with_a_unit(text: object, count: int) -> None:
    assert parse_bytes("max_bytes", text) == count


@pytest.mark.parametrize("size", ["8XB", "GiB", "-1", -1, 1.5, True, None, "9" * 400, "9999999999TiB"])
def test_other_sizes_are_refused_with_the_right_form(size: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_bytes("max_bytes", size)
    assert caught.value.message == '"max_bytes" must be a number of bytes or a size such as "8GiB"'


@pytest.mark.parametrize("number", [nan, inf, -inf])
@pytest.mark.parametrize("name", ["keep_alive", "tensor_split"])
def test_a_number_that_is_none_is_refused_by_name(name: str, number: float) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_constraints({"devices": ["gpu-0"], name: [number] if name == "tensor_split" else number})
    assert caught.value.param == name


@pytest.mark.parametrize("share", [-1, 1e39, 1.7e308, 10**400, True, "1"])
def test_a_share_that_no_sum_can_hold_is_refused_by_name(share: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_constraints({"devices": ["gpu-0", "gpu-1"], "tensor_split": [1, share]})
    assert caught.value.message == '"tensor_split" must be a list of numbers from 0 to 1000000'


@pytest.mark.parametrize("share", [nan, inf, -inf, -1.0, 1e30])
def test_such_a_share_does_not_come_over_the_wire_either(share: float) -> None:
    with pytest.raises(InvalidRequest) as caught:
        to_constraints(scheduler_pb2.Constraints(devices=["gpu-0", "gpu-1"], tensor_split=[1.0, share]))
    assert caught.value.param == "tensor_split"


@pytest.mark.parametrize(
    ("constraints", "device", "obstacle"),
    [
        (NO_CONSTRAINTS, GPU_0, ""),
        (NO_CONSTRAINTS, CPU, ""),
        (Constraints(nodes=("b",)), GPU_0, "nodes"),
        (Constraints(devices=("gpu-0",)), GPU_0, ""),
        (Constraints(devices=("GPU-0",)), GPU_0, ""),
        (Constraints(devices=("a/gpu-0",)), GPU_0, ""),
        (Constraints(devices=("b/gpu-0",)), GPU_0, "devices"),
        (Constraints(devices=("gpu-0",)), GPU_1, "devices"),
        (Constraints(devices=("gpu-0",)), CPU, "devices"),
        (Constraints(backend="cuda"), GPU_0, ""),
        (Constraints(backend="Vulkan"), GPU_0, "backend"),
        (Constraints(num_gpu=0), GPU_0, "num_gpu"),
        (Constraints(num_gpu=0), CPU, ""),
        (Constraints(num_gpu=1), GPU_0, ""),
        (Constraints(num_gpu=1), CPU, "num_gpu"),
        (Constraints(require_gpu=True), CPU, "require_gpu"),
        (Constraints(main_gpu=1), GPU_0, ""),
        (Constraints(main_gpu=2), GPU_0, "main_gpu"),
        (Constraints(main_gpu=2), CPU, "main_gpu"),
        (Constraints(main_gpu=2, num_gpu=0), CPU, ""),
        (Constraints(main_gpu=0, devices=("gpu-1",)), GPU_1, "main_gpu"),
        (Constraints(max_shape=Shape.PARTIAL), CPU, "max_shape"),
    ],
)
def test_who_may_hold_layers(constraints: Constraints, device: object, obstacle: str) -> None:
    assert device_obstacle(constraints, NODE, device) == obstacle  # type: ignore[arg-type]


def test_a_lost_device_still_counts_as_one_that_can_match() -> None:
    dead = node("a", devices=(gpu("gpu-0", usable=False), cpu()))
    assert unmatched(Constraints(devices=("gpu-0",), require_gpu=True), [dead]) == ""
    assert unmatched(Constraints(devices=("gpu-9",)), [dead]) == "devices"


def test_a_count_of_layers_on_gpus_needs_a_gpu_and_no_accelerator_is_one() -> None:
    helper = replace(gpu("blas"), kind=DeviceKind.ACCELERATOR)
    assert unmatched(Constraints(num_gpu=5), [node("a", devices=(helper, cpu()))]) == "num_gpu"
    assert unmatched(Constraints(require_gpu=True), [node("a", devices=(helper, cpu()))]) == "require_gpu"
    assert unmatched(Constraints(num_gpu=5), [node("a", devices=(gpu("gpu-0", usable=False), cpu()))]) == ""


def test_gpus_are_counted_by_address_then_by_id_and_keep_their_numbers_when_one_is_lost() -> None:
    third, first = replace(gpu("u-1"), pci_id="0000:c1:00.0"), replace(gpu("u-2", usable=False), pci_id="0000:01:00.0")
    one = node("a", devices=(cpu(), gpu("u-0"), third, first))
    assert [device.id for device in numbered_gpus(one)] == ["u-2", "u-1", "u-0"]
    assert Constraints(main_gpu=0).main_device(one) == first
    assert unmatched(Constraints(main_gpu=2), [one]) == ""
    assert unmatched(Constraints(main_gpu=3), [one]) == "main_gpu"
    assert unmatched(Constraints(main_gpu=3, num_gpu=0), [one]) == ""


def test_caps_by_name_come_before_the_one_for_all_which_spares_the_cpu() -> None:
    constraints = Constraints(max_bytes=(("*", 8 * GIB), ("a/gpu-1", 4 * GIB)))
    caps = [constraints.max_bytes_on(NODE, device) for device in (GPU_0, GPU_1, CPU)]
    assert caps == [8 * GIB, 4 * GIB, None]


def test_a_request_refines_what_an_operator_wants_and_never_lifts_require_gpu() -> None:
    wanted = Constraints(require_gpu=True, num_gpu=10, threads=4)
    both = wanted.with_request(LoadOptions(num_gpu=5, threads=8, use_mmap=True))
    assert (both.require_gpu, both.num_gpu, both.threads, both.use_mmap) == (True, 5, 8, True)
    with pytest.raises(InvalidRequest, match="num_gpu 0"):
        wanted.with_request(LoadOptions(num_gpu=0))


@given(shape=st.sampled_from(Shape), slowest=st.sampled_from(Shape), require_gpu=st.booleans())
def test_a_shape_is_allowed_up_to_the_slowest_and_on_devices_alone_where_that_is_required(
    shape: Shape, slowest: Shape, *, require_gpu: bool
) -> None:
    order = list(Shape)
    allowed = Constraints(max_shape=slowest, require_gpu=require_gpu).allows_shape(shape)
    on_host = shape in {Shape.EXPERTS_ON_HOST, Shape.PARTIAL, Shape.CPU}
    assert allowed == (order.index(shape) <= order.index(slowest) and not (require_gpu and on_host))


@pytest.mark.parametrize("field", ["max_shape", "policy", "cache_type_k"])
def test_names_that_this_build_does_not_know_are_refused_on_the_wire(field: str) -> None:
    wire = scheduler_pb2.Constraints(**{field: "unheard of"})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=field):
        to_constraints(wire)


def test_the_wire_says_the_same_as_the_values() -> None:
    wire = scheduler_pb2.Constraints(
        policy="spread", flash_attention=cluster_pb2.FLASH_ATTENTION_OFF, replicas_min=2, keep_alive_ms=-1
    )
    constraints = to_constraints(wire)
    assert (constraints.policy, constraints.flash_attention) == (FillPolicy.SPREAD, FlashAttention.OFF)
    assert (constraints.replicas_min, constraints.replicas_max, constraints.keep_alive_ms) == (2, 2, -1)


# The file.


def test_a_file_has_one_table_per_model(tmp_path: Path) -> None:
    path = tmp_path / "placements.toml"
    path.write_text('[models."llama3:8b"]\nreplicas_min = 1\nmax_bytes = "8GiB"\n[models.demo]\nkeep_alive = "1h"\n')
    models = read_constraints_file(str(path))
    assert models["llama3:8b"] == Constraints(replicas_min=1, max_bytes=(("*", 8 * GIB),))
    assert models["demo:latest"].keep_alive_ms == 3_600_000
    assert read_constraints_file("") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[models.demo]\nreplicas = 1\n", '"replicas" is no constraint'),
        ("[models.demo]\nreplicas_min = 'two'\n", '"replicas_min"'),
        ("[demo]\nreplicas_min = 1\n", "only tables"),
        ("models = 3\n", "only tables"),
        ("[models]\ndemo = 3\n", "must be a table"),
        ("[models.demo]\nkeep_alive = nan\n", 'models."demo": "keep_alive" must be a number of seconds'),
        ("[models.demo]\nkeep_alive = -inf\n", 'models."demo": "keep_alive" must be a number of seconds'),
        (f"[models.demo]\nkeep_alive = {'9' * 400}\n", '"keep_alive" must be'),
        (f"[models.demo]\nkeep_alive = {'9' * 5000}\n", "placements.toml"),
        ("[models.demo\n", "placements.toml"),
    ],
)
def test_a_file_of_no_use_stops_the_start_with_its_reason(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "placements.toml"
    path.write_text(text)
    with pytest.raises(StartupError, match="PUNA_PLACEMENTS") as caught:
        read_constraints_file(str(path))
    assert said in str(caught.value)


def test_a_file_that_is_not_there_stops_the_start() -> None:
    with pytest.raises(StartupError, match="No such file"):
        read_constraints_file("/nowhere/placements.toml")
