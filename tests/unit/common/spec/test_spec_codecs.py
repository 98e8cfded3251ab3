"""The one codec: every field of every message survives both ways."""

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

import orjson
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from common.spec import codecs
from common.spec.codec import Codec, EnumCodec
from common.spec.layout import FlashAttention, Layout
from common.spec.sampling import Sampling
from protos import cluster_pb2, runner_pb2

CODECS: dict[str, Codec[Any, Any]] = {name: codec for name, codec in vars(codecs).items() if isinstance(codec, Codec)}
_UINT32, _UINT64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_FLOAT: st.floats(width=32, allow_nan=False, allow_infinity=False),
    FieldDescriptor.TYPE_SINT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_UINT32: _UINT32,
    FieldDescriptor.TYPE_UINT64: _UINT64,
    FieldDescriptor.TYPE_STRING: st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
}


def element(declared: Any) -> st.SearchStrategy[Any]:
    """Any content of one element of a field. An unset enumeration is read as its default, so it is left out."""
    if declared.enum_type is not None:
        return st.sampled_from([one.number for one in declared.enum_type.values if one.number])
    if declared.message_type is not None:
        return messages(declared.message_type)
    return _SCALARS[declared.type]


def content(declared: Any) -> st.SearchStrategy[Any]:
    """Any content of a field."""
    if declared.message_type is not None and declared.message_type.GetOptions().map_entry:
        entry = declared.message_type.fields_by_name
        return st.dictionaries(_SCALARS[entry["key"].type], _SCALARS[entry["value"].type], max_size=3)
    return st.lists(element(declared), max_size=3) if declared.is_repeated else element(declared)


def messages(kind: Any) -> st.SearchStrategy[Message]:
    """A message of a descriptor, with every field set."""
    return st.builds(message_factory.GetMessageClass(kind), **{one.name: content(one) for one in kind.fields})


@pytest.mark.parametrize("name", CODECS)
@given(data=st.data())
def test_proto_to_value_to_proto_is_the_identity_over_every_field(name: str, data: st.DataObject) -> None:
    codec = CODECS[name]
    message = data.draw(messages(codec.message.DESCRIPTOR))
    value = codec.from_proto(message)
    assert codec.to_proto(value) == message
    assert codec.from_proto(codec.to_proto(value)) == value
    assert codec.from_json(orjson.loads(orjson.dumps(codec.to_json(value)))) == value


@pytest.mark.parametrize("name", CODECS)
def test_a_value_has_every_field_of_its_message(name: str) -> None:
    codec = CODECS[name]
    kept = {one.name for one in fields(codec.value) if "local" not in one.metadata}
    assert kept == {one.name for one in codec.message.DESCRIPTOR.fields}


@pytest.mark.parametrize("name", CODECS)
def test_a_message_with_nothing_set_means_the_defaults_of_the_value(name: str) -> None:
    codec = CODECS[name]
    assert codec.from_proto(codec.message()) == codec.from_json({}) == codec.value()


def test_an_optional_field_that_is_not_set_stays_so() -> None:
    assert not codecs.LAYOUT.to_proto(Layout()).HasField("use_mmap")
    assert codecs.LAYOUT.to_proto(Layout(use_mmap=False)).HasField("use_mmap")


def test_a_local_field_stays_in_its_process() -> None:
    layout = Layout(separate_caches=True)
    assert codecs.LAYOUT.from_proto(codecs.LAYOUT.to_proto(layout)) == Layout()
    assert "separate_caches" not in codecs.LAYOUT.to_json(layout)


def test_a_member_of_a_newer_peer_is_the_harmless_one() -> None:
    assert codecs.FLASH_ATTENTION.from_proto(99) is FlashAttention.AUTO
    assert [codecs.FLASH_ATTENTION.find(number) for number in (0, 99)] == [None, None]


@pytest.mark.parametrize("broken", [{"slots": "many"}, {"devices": [1]}, {"devices": [{}]}, {"split_mode": "half"}])
def test_json_of_another_shape_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises((AttributeError, TypeError, ValueError)):
        codecs.LAYOUT.from_json(broken)


def test_members_that_one_side_lacks_are_an_error_at_import() -> None:
    class Short(StrEnum):
        AUTO = "auto"

    with pytest.raises(TypeError, match="Short and FLASH_ATTENTION_… differ in members"):
        EnumCodec(Short, cluster_pb2.FlashAttention.DESCRIPTOR, unknown=Short.AUTO)


def test_a_field_that_is_set_to_zero_is_no_default() -> None:
    assert codecs.SAMPLING.from_proto(runner_pb2.Sampling(temperature=0, top_k=0)) == Sampling(temperature=0.0, top_k=0)


def test_a_field_that_one_side_lacks_is_an_error_at_import() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Short:
        digest: str = ""

    with pytest.raises(TypeError, match=r"Short and puna\.v1\.Adapter differ in scale"):
        Codec(Short, cluster_pb2.Adapter)


def test_two_defaults_of_one_field_are_an_error_at_import() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Loud:
        digest: str = ""
        scale: float = 1.0

    with pytest.raises(TypeError, match="differ in what no scale means"):
        Codec(Loud, cluster_pb2.Adapter)


@dataclass(frozen=True, kw_only=True)
class Part:
    name: str
    layout: str = ""  # a message in the proto
    more: int = 0


def test_a_partial_codec_converts_what_is_alike_and_is_given_the_rest() -> None:
    codec = Codec(Part, cluster_pb2.RunnerRecord, nested={}, partial=True)
    with pytest.raises(TypeError, match="lacks layout, more, name"):
        codec.from_proto(cluster_pb2.RunnerRecord())
    files = Codec(Part, cluster_pb2.Model, partial=True)
    assert files.from_proto(cluster_pb2.Model(name="m"), layout="l", more=2) == Part(name="m", layout="l", more=2)
    assert files.to_proto(Part(name="m"), digest="d") == cluster_pb2.Model(name="m", digest="d")
    with pytest.raises(TypeError, match="RunnerRecord lacks layout"):
        codec.to_proto(Part(name="m"))
