"""`python -m runner inspect PATH...`: describe a GGUF file, or one in several, from its header, as JSON.

A throw-away process: a hostile file can at worst end this one.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

import orjson
from google.protobuf import json_format

from common.errors import BadModelFile
from common.spec.codec import Codec
from protos import cluster_pb2
from runner.core.model.description import (
    DETAILS_BYTES_MAX,
    Description,
    TensorFacts,
    Value,
    describe,
    named_token_ids,
    too_long,
)
from runner.core.model.model_memory import ModelMemory, describe_memory
from runner.core.model.split_files import check_split, check_tensor_count
from runner.engine.bindings.gguf_header import GgufHeader, open_gguf_header, special_tokens

EXIT_BAD_FILE = 3
ITEMS_PER_PIECE = 1024
MEMORY = Codec(ModelMemory, cluster_pb2.ModelMemory)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this mode."""
    parser.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="all files of a split model, in order")
    parser.add_argument("--part", action="store_true", help="any GGUF: the file need be no whole model")
    parser.add_argument("--header", action="store_true", help="print the header itself: every key, every tensor")


def run(args: argparse.Namespace) -> int:
    """Print puna.v1.ModelDescription as JSON; exit 3 and one JSON line {"reason", "message"} for an unusable file.

    With --header: {"metadata": {key: value}, "tensors": [[name, type, [length...]]...]}.
    """
    try:
        if args.header:
            write_header(sys.stdout.buffer, *args.paths)
            return 0
        description = describe_part(args.paths[0]) if args.part else describe_file(*args.paths)
    except BadModelFile as error:
        print(orjson.dumps({"reason": error.reason, "message": error.message}).decode())
        return EXIT_BAD_FILE
    sys.stdout.write(json_format.MessageToJson(description, preserving_proto_field_name=True, indent=None) + "\n")
    return 0


def describe_file(path: Path, *more: Path) -> cluster_pb2.ModelDescription:
    """Read the header and describe the model. `more` are the other files of one that is split, in their order.

    Raises:
        BadModelFile: the engine could not load this file, or the files are not those of one model.
    """
    tensors: list[TensorFacts] = []
    paths = (path, *more)
    for position, part in enumerate(paths[1:], 1):
        with open_gguf_header(part) as header:
            check_split(part.name, header.metadata(), position=position, count=len(paths))
            tensors += header.tensors()
    with open_gguf_header(path) as header:
        metadata = header.metadata()
        check_split(path.name, metadata, position=0, count=len(paths))
        tensors = header.tensors() + tensors
        description = _describe(header, metadata, tensors)
    if not description.architecture:
        raise BadModelFile(f"{path}: the header names no architecture")
    if not tensors:
        raise BadModelFile(f"{path}: the file holds no tensors, only a vocabulary")
    check_tensor_count(path.name, metadata, len(tensors))
    described = to_proto(description)
    memory = describe_memory(metadata, tensors, architecture=description.architecture)
    described.memory.CopyFrom(MEMORY.to_proto(memory))
    return described


def describe_part(path: Path) -> cluster_pb2.ModelDescription:
    """Describe one file, be it a whole model or not.

    Raises:
        BadModelFile: no GGUF that the engine can read.
    """
    with open_gguf_header(path) as header:
        return to_proto(_describe(header, header.metadata(), header.tensors()))


def write_header(out: BinaryIO, *paths: Path) -> None:
    """Write every key of the first file with its whole value, and the tensors of all of them.

    In pieces: as one text, escapes can make it six times as long as the header.

    Raises:
        BadModelFile: no GGUF that the engine can read; nothing is written.
    """
    metadata: Mapping[str, Value] = {}
    tensors: list[tuple[str, str, list[int]]] = []
    for position, path in enumerate(paths):
        with open_gguf_header(path) as header:
            metadata = header.whole_metadata() if position == 0 else metadata
            tensors += header.shapes()
    out.write(b'{"metadata":{')
    for number, (key, value) in enumerate(metadata.items()):
        out.write(b"," * bool(number) + orjson.dumps(key) + b":")
        if isinstance(value, list):
            _write_list(out, value)
        else:
            out.write(orjson.dumps(value))
    out.write(b'},"tensors":')
    _write_list(out, tensors)
    out.write(b"}\n")


def _write_list(out: BinaryIO, items: Sequence[object]) -> None:
    out.write(b"[")
    for start in range(0, len(items), ITEMS_PER_PIECE):
        out.write(b"," * bool(start) + orjson.dumps(items[start : start + ITEMS_PER_PIECE])[1:-1])
    out.write(b"]")


def _describe(header: GgufHeader, metadata: Mapping[str, Value], tensors: list[TensorFacts]) -> Description:
    special = special_tokens(header)
    named = header.token_texts(named_token_ids(metadata), bytes_max=DETAILS_BYTES_MAX)
    return describe(
        metadata,
        tensors,
        token_texts={**named, **special},
        special_token_ids=special,
        vocabulary_size=header.vocabulary_size(),
        token_bytes_max=header.token_bytes_max(),
    )


def to_proto(description: Description) -> cluster_pb2.ModelDescription:
    """Return the description as it travels.

    Raises:
        BadModelFile: it is too long to travel.
    """
    shown = asdict(description)
    metadata = orjson.dumps(shown.pop("metadata")).decode()
    described = cluster_pb2.ModelDescription(**shown, metadata_json=metadata)
    if described.ByteSize() > DETAILS_BYTES_MAX:
        raise too_long()
    return described
