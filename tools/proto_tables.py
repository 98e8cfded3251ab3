"""Services and messages of protos/*.proto as tables, with the comments that the files have."""

import functools
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
)

from tools.tidy_report import MARKDOWN_LINE_MAX

ROOT = Path(__file__).resolve().parents[1]
# Field numbers of descriptor.proto: a comment's path is made of them and of positions.
_MESSAGE, _ENUM, _SERVICE = 4, 5, 6
_FIELD, _NESTED, _NESTED_ENUM, _VALUE, _METHOD = 2, 3, 4, 2, 2
_SCALARS = {
    FieldDescriptorProto.Type.Value(f"TYPE_{name.upper()}"): name
    for name in (
        *("double", "float", "bool", "string", "bytes"),
        *("int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed64"),
    )
}
Path_ = tuple[int, ...]


class File:
    """One proto file with its comments by place."""

    def __init__(self, proto: FileDescriptorProto) -> None:
        self.proto = proto
        self._comments = {
            tuple(location.path): " ".join(f"{location.leading_comments} {location.trailing_comments}".split())
            for location in proto.source_code_info.location
            if location.leading_comments or location.trailing_comments
        }

    def comment(self, *path: int) -> str:
        """Return the comment at a place, on one line, fit for a table."""
        return self._comments.get(path, "").replace("|", "\\|").replace("<", "&lt;")


@functools.cache
def files() -> tuple[File, ...]:
    """Compile the proto files; return them in the order of their names."""
    names = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "protos").glob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "set"
        options = ["-I.", "--include_source_info", "--include_imports", f"--descriptor_set_out={result}"]
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options, *names], cwd=ROOT, check=True)
        found = FileDescriptorSet.FromString(result.read_bytes())
    return tuple(File(proto) for proto in sorted(found.file, key=lambda one: one.name) if proto.name in names)


def service_table() -> str:
    """Return a table of the services with the names of their calls."""
    lines = ["| service | calls | file |", "|---|---|---|"]
    for file in files():
        for service in file.proto.service:
            calls = ", ".join(f"`{method.name}`" for method in service.method)
            lines.append(f"| `{service.name}` | {calls} | [{file.proto.name}](../{file.proto.name}) |")
    return "\n".join(lines)


def call_table() -> str:
    """Return a table of every call of every service, with its effect."""
    lines = ["| service | call | takes → gives | effect |", "|---|---|---|---|"]
    for file in files():
        for at, service in enumerate(file.proto.service):
            lines.append(f"| **`{service.name}`** | | | {file.comment(_SERVICE, at)} |")
            for place, method in enumerate(service.method):
                effect = file.comment(_SERVICE, at, _METHOD, place)
                lines.append(f"| | `{method.name}` | {_signature(method)} | {effect} |")
    return "\n".join(lines)


def message_tables() -> str:
    """Return tables of the messages and enumerations, file by file."""
    parts = []
    for file in files():
        parts.append(f"## {file.proto.name}")
        for at, message in enumerate(file.proto.message_type):
            parts += _message(file, message, (_MESSAGE, at), "")
        for at, enum in enumerate(file.proto.enum_type):
            parts.append(_enum(file, enum, (_ENUM, at), ""))
    return "\n\n".join(parts)


def _message(file: File, message: DescriptorProto, path: Path_, outer: str) -> Iterable[str]:
    if message.options.map_entry:
        return
    name = f"{outer}{message.name}"
    entries = {f".{file.proto.package}.{name}.{nested.name}": nested for nested in message.nested_type}
    lines = [f"### {name}", "", *_about(file.comment(*path))]
    if message.field:
        lines += ["| | field | type | meaning |", "|---:|---|---|---|"]
        lines += [
            f"| {field.number} | `{field.name}` | {_type(field, entries)} | {file.comment(*path, _FIELD, at)} |"
            for at, field in enumerate(message.field)
        ]
    else:
        lines.append("No fields.")
    yield "\n".join(lines)
    for at, nested in enumerate(message.nested_type):
        yield from _message(file, nested, (*path, _NESTED, at), f"{name}.")
    for at, enum in enumerate(message.enum_type):
        yield _enum(file, enum, (*path, _NESTED_ENUM, at), f"{name}.")


def _enum(file: File, enum: EnumDescriptorProto, path: Path_, outer: str) -> str:
    lines = [f"### {outer}{enum.name}", "", *_about(file.comment(*path)), "| | value | meaning |", "|---:|---|---|"]
    lines += [
        f"| {value.number} | `{value.name}` | {file.comment(*path, _VALUE, at)} |"
        for at, value in enumerate(enum.value)
    ]
    return "\n".join(lines)


def _about(comment: str) -> list[str]:
    return (
        [textwrap.fill(comment, MARKDOWN_LINE_MAX, break_long_words=False, break_on_hyphens=False), ""]
        if comment
        else []
    )


def _type(field: FieldDescriptorProto, entries: dict[str, DescriptorProto]) -> str:
    entry = entries.get(field.type_name)
    if entry is not None and entry.options.map_entry:
        key, value = entry.field
        return f"map of {_type(key, {})} to {_type(value, {})}"
    name = _SCALARS.get(field.type) or f"`{_short(field.type_name)}`"
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"list of {name}"
    if field.proto3_optional:
        return f"{name}, optional"
    return f"{name}, one of" if field.HasField("oneof_index") else name


def _signature(method: MethodDescriptorProto) -> str:
    takes, gives = _short(method.input_type), _short(method.output_type)
    stream_in = "stream of " if method.client_streaming else ""
    stream_out = "stream of " if method.server_streaming else ""
    return f"{stream_in}`{takes}` → {stream_out}`{gives}`"


def _short(type_name: str) -> str:
    return type_name.removeprefix(".").removeprefix("puna.v1.")
