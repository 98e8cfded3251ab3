"""A layout keeps every field on its way through protos."""

from google.protobuf import json_format

from common.spec import codecs
from common.spec.layout import Layout
from protos import cluster_pb2
from runner.serve.converters import parse_layout

FULL = cluster_pb2.Layout(
    devices=[
        cluster_pb2.DeviceLayers(device_id="far", layer_count=2, node_id="b", rpc_address="127.0.0.1:5", rpc_device=1),
        cluster_pb2.DeviceLayers(device_id="near", layer_count=3),
    ],
    context_tokens=1024,
    slots=3,
    batch_tokens=64,
    cache_type_k="q8_0",
    cache_type_v="q4_0",
    flash_attention=cluster_pb2.FLASH_ATTENTION_ON,
    threads=2,
    use_mmap=False,
    engine="batched",
    projector_digest="aa",
    adapters=[cluster_pb2.Adapter(digest="bb", scale=0.5)],
    pipeline=True,
    output_on_host=True,
    experts_on_host=2,
    split_mode=cluster_pb2.SPLIT_MODE_ROW,
    main_device=1,
    op_offload=False,
    ubatch_tokens=32,
    draft_digest="cc",
    rollback_tokens=3,
)


def test_every_field_comes_back() -> None:
    assert {field.name for field, _ in FULL.ListFields()} == set(cluster_pb2.Layout.DESCRIPTOR.fields_by_name)
    named = set(cluster_pb2.DeviceLayers.DESCRIPTOR.fields_by_name)
    assert {field.name for field, _ in FULL.devices[0].ListFields()} == named
    assert codecs.LAYOUT.to_proto(codecs.LAYOUT.from_proto(FULL)) == FULL
    assert parse_layout(json_format.MessageToJson(FULL)) == codecs.LAYOUT.from_proto(FULL)


def test_what_is_unset_stays_open() -> None:
    assert codecs.LAYOUT.from_proto(cluster_pb2.Layout()) == Layout()
