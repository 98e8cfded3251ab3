"""Splits a GGUF file into several, with keys and names as llama.cpp's gguf-split writes them."""

from pathlib import Path

import gguf


def split_gguf(model: Path, directory: Path, *, parts: int, stem: str = "split") -> list[Path]:
    """Write `parts` files, the tensors shared out in order; the first has the model's keys."""
    reader = gguf.GGUFReader(model)
    tensors = reader.tensors
    paths = [directory / f"{stem}-{number:05}-of-{parts:05}.gguf" for number in range(1, parts + 1)]
    each = -(-len(tensors) // parts)
    for number, path in enumerate(paths):
        writer = gguf.GGUFWriter(path, str(reader.fields["general.architecture"].contents()))
        if number == 0:
            _copy_keys(reader, writer)
        else:
            writer.kv_data[0].clear()
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", parts)
        writer.add_int32("split.tensors.count", len(tensors))
        for tensor in tensors[number * each : (number + 1) * each]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths


def _copy_keys(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        item = field.types[1] if len(field.types) > 1 else None
        writer.add_key_value(name, field.contents(), field.types[0], item)
