"""Values cross the border unchanged, and unknown ones do no harm."""

from typing import Any

import orjson
import pytest

from common.errors import InternalError, ModelUnavailable, error_types
from common.seen_inventory import Laid
from common.spec import codecs
from common.spec.layout import Adapter, DeviceLayers, FlashAttention, Layout, SplitMode
from protos import cluster_pb2, discovery_pb2
from scheduler.converters import (
    MEMORY_REPORT,
    KnownNodes,
    error_of,
    fault_of,
    to_layout,
    to_runner,
)
from scheduler.core.values.desired import DesiredPlacement, Phase
from scheduler.core.values.faults import Fault
from scheduler.core.values.memory import DeviceBytes, MemoryOrigin, MemoryReport
from scheduler.core.values.view import DeviceKind, NodeView, RunnerState, Trust
from scheduler.redis_store import UNREADABLE, decode, encode

LAYOUT = Layout(
    context_tokens=4096,
    slots=4,
    batch_tokens=256,
    cache_type_k="q8_0",
    cache_type_v="f16",
    flash_attention=FlashAttention.ON,
    threads=3,
    use_mmap=False,
    engine="fake",
).on("GPU-1", 33)
SPREAD_OUT = Layout(
    devices=(
        DeviceLayers(device_id="GPU-2", layer_count=11, node_id="b"),
        DeviceLayers(device_id="GPU-1", layer_count=13),
    ),
    context_tokens=8192,
    slots=2,
    batch_tokens=512,
    projector_digest="p" * 64,
    adapters=(Adapter(digest="a" * 64, scale=0.5), Adapter(digest="b" * 64, scale=1.0)),
    pipeline=True,
    output_on_host=True,
    experts_on_host=5,
    split_mode=SplitMode.ROW,
    main_device=1,
    op_offload=False,
    ubatch_tokens=128,
)
REPORT = MemoryReport(
    origin=MemoryOrigin.ATTEMPTED,
    devices=(
        DeviceBytes(
            device_id="GPU-1",
            weights_bytes=11,
            cache_bytes=2,
            graph_bytes=3,
            layer_weights_bytes=(0, 4, 6),
            layer_cache_bytes=(0, 2, 0),
            input_weights_bytes=1,
            projector_bytes=7,
        ),
    ),
    host=DeviceBytes(weights_bytes=4, cache_bytes=5, graph_bytes=6),
)


@pytest.mark.parametrize(
    "layout", [LAYOUT, SPREAD_OUT, LAYOUT.without_devices(), Layout(context_tokens=1, slots=1, batch_tokens=1)]
)
def test_a_layout_crosses_unchanged(layout: Layout) -> None:
    assert to_layout(codecs.LAYOUT.to_proto(layout)) == layout


def test_a_report_crosses_unchanged() -> None:
    assert MEMORY_REPORT.from_proto(MEMORY_REPORT.to_proto(REPORT)) == REPORT


def stored(record: DesiredPlacement) -> dict[str, Any]:
    """A record as it comes back from the store."""
    fields: dict[str, Any] = orjson.loads(orjson.dumps(encode(record)))
    return fields


@pytest.mark.parametrize("planned", [None, REPORT])
@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("layout", [LAYOUT, SPREAD_OUT])
def test_a_record_is_stored_unchanged(layout: Layout, phase: Phase, planned: MemoryReport | None) -> None:
    record = DesiredPlacement(
        placement_id="p",
        generation=7,
        phase=phase,
        node_id="a",
        model_name="m:latest",
        model_digest="d",
        layout=layout,
        planned=planned,
        keep_alive_ms=-1,
        keep_alive_heard=3,
    )
    assert decode(stored(record)) == record


def test_a_record_of_the_version_before_is_read() -> None:
    record = DesiredPlacement(
        placement_id="p",
        generation=7,
        phase=Phase.RUNNING,
        node_id="a",
        model_name="m:latest",
        model_digest="d",
        layout=SPREAD_OUT,
    )
    fields = stored(record)
    for device in fields["layout"]["devices"]:  # as the value had them, written field by field
        del device["rpc_address"], device["rpc_device"]
    assert decode(fields) == record
    old = {"devices": [{"device_id": "g", "layer_count": 3}], "context_tokens": 8, "slots": 1, "batch_tokens": 2}
    expected = Layout(devices=(DeviceLayers("g", 3),), context_tokens=8, slots=1, batch_tokens=2)
    assert decode({**fields, "layout": old}).layout == expected


@pytest.mark.parametrize("missing", ["devices", "context_tokens", "slots", "batch_tokens"])
def test_a_record_whose_layout_lacks_what_every_version_wrote_is_none(missing: str) -> None:
    layout = {"devices": [], "context_tokens": 8, "slots": 1, "batch_tokens": 2}
    names = ("placement_id", "phase", "node_id", "model_name", "model_digest")
    fields = {**dict.fromkeys(names, "running"), "generation": 1, "layout": layout}
    assert decode(fields).layout.slots == 1
    del layout[missing]
    with pytest.raises(UNREADABLE):
        decode(fields)


def test_addresses_of_lent_devices_stay_with_the_host() -> None:
    device = cluster_pb2.DeviceLayers(device_id="g", layer_count=3, node_id="b", rpc_address="h:1", rpc_device=2)
    assert to_layout(cluster_pb2.Layout(devices=[device])).devices == (DeviceLayers("g", 3, node_id="b"),)


@pytest.mark.parametrize("content", [[], None, {}, {"placement_id": 1}, "x"])
def test_what_is_no_record_is_unreadable(content: Any) -> None:
    with pytest.raises(UNREADABLE):
        decode(content)


@pytest.mark.parametrize("reason", sorted(error_types()))
def test_every_error_becomes_a_value_and_the_same_error_again(reason: str) -> None:
    error = error_types()[reason]("words", retry_after_s=2.0)
    again = error_of(fault_of(error))
    assert type(again) is type(error)
    assert (again.message, again.retry_after_s) == ("words", 2.0)


def test_a_reason_of_a_newer_build_is_an_internal_error() -> None:
    assert isinstance(error_of(Fault(reason="from_the_future", message="words")), InternalError)


def test_enum_values_of_a_newer_build_become_the_harmless_one() -> None:
    device = cluster_pb2.Device(id="d", pool_id="")
    device.type = 99  # type: ignore[assignment]
    device.trust = 99  # type: ignore[assignment]
    device.state = 99  # type: ignore[assignment]
    record = cluster_pb2.RunnerRecord()
    record.status.state = 99  # type: ignore[assignment]
    inventory = discovery_pb2.Inventory(nodes=[cluster_pb2.Node(id="a", devices=[device], runners=[record])])
    ((node,), _) = KnownNodes().views(Laid().take(inventory))
    (seen,) = node.devices
    assert (seen.kind, seen.trust, seen.usable, seen.pool_id) == (DeviceKind.UNKNOWN, Trust.UNKNOWN, False, "d")
    assert node.runners[0].state is RunnerState.UNKNOWN


def test_a_runner_without_optional_parts_has_none_of_them() -> None:
    runner = to_runner(cluster_pb2.RunnerRecord())
    assert (runner.keep_alive_ms, runner.memory, runner.fault) == (None, None, None)
    assert runner.keep_alive_requests == 0


def test_a_runners_error_keeps_its_reason_and_the_sizes_that_failed() -> None:
    status = cluster_pb2.RunnerStatus(state=cluster_pb2.RUNNER_STATE_ERROR)
    status.error.reason = "insufficient_memory"
    status.error.message = "no room for the cache"
    status.error.attempted.CopyFrom(MEMORY_REPORT.to_proto(REPORT))
    fault = to_runner(cluster_pb2.RunnerRecord(status=status)).fault
    assert fault == Fault(reason="insufficient_memory", message="no room for the cache", attempted=REPORT)


def test_a_model_without_a_header_cannot_be_used() -> None:
    models = [cluster_pb2.Model(name="m:latest", digest="d")]
    ((node,), _) = KnownNodes().views(
        Laid().take(discovery_pb2.Inventory(nodes=[cluster_pb2.Node(id="a", models=models)]))
    )
    assert node.models[0].error


def test_files_are_made_anew_only_where_they_changed() -> None:
    def seen(*nodes: tuple[str, str]) -> dict[str, NodeView]:
        models = {name: [cluster_pb2.Model(name="m:latest", digest=digest)] for name, digest in nodes}
        inventory = discovery_pb2.Inventory(nodes=[cluster_pb2.Node(id=name, models=models[name]) for name in models])
        return {node.id: node for node in known.views(laid.take(inventory))[0]}

    known, laid = KnownNodes(), Laid()
    first, second = seen(("a", "1"), ("b", "1")), seen(("a", "1"), ("b", "2"))
    assert second["a"].models is first["a"].models
    assert second["b"].models[0].digest == "2"
    seen(("b", "2"))
    assert seen(("a", "1"), ("b", "2"))["a"].models is not first["a"].models


def test_retry_after_is_kept_on_the_way_out() -> None:
    error = error_of(Fault(reason="model_unavailable", message="later", retry_after_s=1.5))
    assert isinstance(error, ModelUnavailable)
    assert error.retry_after_s == 1.5


def test_a_runner_whose_files_are_on_their_way_says_so() -> None:
    status = cluster_pb2.RunnerStatus(state=cluster_pb2.RUNNER_STATE_LOADING, load_note="fetching")
    assert to_runner(cluster_pb2.RunnerRecord(status=status)).is_fetching
    status.load_note = ""
    assert not to_runner(cluster_pb2.RunnerRecord(status=status)).is_fetching
