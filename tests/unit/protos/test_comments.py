"""The contracts explain themselves: every service, rpc, message field and enum value has a comment."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

ROOT = Path(__file__).resolve().parents[3]
# Field numbers inside descriptor.proto: where nested declarations are found in a source path.
MESSAGE, ENUM, SERVICE, FIELD, NESTED, NESTED_ENUM, ENUM_VALUE, METHOD = 4, 5, 6, 2, 3, 4, 2, 2


@pytest.fixture(scope="module")
def descriptors(tmp_path_factory: pytest.TempPathFactory) -> descriptor_pb2.FileDescriptorSet:
    out = tmp_path_factory.mktemp("protos") / "all.binpb"
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "protos").glob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--descriptor_set_out={out}", "--include_source_info"]
    subprocess.run([*command, *files], cwd=ROOT, check=True)
    return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


def declarations(file: descriptor_pb2.FileDescriptorProto) -> Iterator[tuple[tuple[int, ...], str]]:
    """Source path and name of everything that needs a comment."""
    for i, service in enumerate(file.service):
        for j, method in enumerate(service.method):
            yield (SERVICE, i, METHOD, j), f"{service.name}.{method.name}"
    for i, message in enumerate(file.message_type):
        for j, field in enumerate(message.field):
            yield (MESSAGE, i, FIELD, j), f"{message.name}.{field.name}"
    for i, enum in enumerate(file.enum_type):
        for j, value in enumerate(enum.value):
            if value.number:  # zero is "unspecified" everywhere
                yield (ENUM, i, ENUM_VALUE, j), f"{enum.name}.{value.name}"


def test_everything_in_the_contracts_is_commented(descriptors: descriptor_pb2.FileDescriptorSet) -> None:
    bare = []
    for file in descriptors.file:
        commented = {
            tuple(location.path)
            for location in file.source_code_info.location
            if location.leading_comments.strip() or location.trailing_comments.strip()
        }
        bare += [f"{file.name}: {name}" for path, name in declarations(file) if path not in commented]
    assert bare == []


def test_every_file_is_in_the_package(descriptors: descriptor_pb2.FileDescriptorSet) -> None:
    assert {file.package for file in descriptors.file} == {"puna.v1"}
