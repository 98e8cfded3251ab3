"""Bytes by the header of a model, against the engine's count."""

import json
import subprocess
import sys

import gguf
import pytest
from google.protobuf import json_format

from common.spec.layout import Layout
from protos import cluster_pb2
from runner.engine.bindings.gguf_header import open_gguf_header
from runner.inspect import describe_file
from scheduler.converters import MEMORY_REPORT, to_facts
from scheduler.core.sizes.estimate import cache_bytes
from tests.integration.runner.conftest import Zoo
from tools.model_zoo import ZOO

LAYOUT = Layout(context_tokens=1024, slots=2, batch_tokens=128)
LAYOUT_JSON = json.dumps({"context_tokens": 1024, "slots": 2, "batch_tokens": 128})


@pytest.mark.behaviour("B-71", "B-72")
@pytest.mark.parametrize("model", ["dense_wide_head", "moe", "hybrid"])
def test_weights_and_cache_by_the_header_are_those_that_the_engine_counts(zoo: Zoo, model: str) -> None:
    path = zoo(model)
    command = [sys.executable, "-m", "runner", "measure", "--model", str(path), "--layout", LAYOUT_JSON]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    host = MEMORY_REPORT.from_proto(json_format.Parse(answer.stdout, cluster_pb2.MemoryReport())).host
    facts = to_facts(describe_file(path))
    assert sum(facts.layer_weights_bytes) + facts.input_weights_bytes == host.weights_bytes
    # The output layer's entry is what the runner keeps beside the cache: output rows, copies of prompts.
    assert cache_bytes(facts, LAYOUT)[:-1] == list(host.layer_cache_bytes[:-1])


@pytest.mark.parametrize("name", ZOO)
def test_a_header_reads_as_with_the_reader_of_the_format(zoo: Zoo, name: str) -> None:
    reader = gguf.GGUFReader(zoo(name))
    with open_gguf_header(zoo(name)) as header:
        metadata, shapes, tensors = header.whole_metadata(), header.shapes(), header.tensors()
    fields = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert metadata == fields
    for shape, facts, tensor in zip(shapes, tensors, reader.tensors, strict=True):
        lengths = [int(length) for length in tensor.shape]
        while len(lengths) > 1 and lengths[-1] == 1:
            lengths.pop()
        assert shape == (tensor.name, tensor.tensor_type.name.lower(), lengths)
        assert (facts.name, facts.dimension_count) == (tensor.name, len(lengths))
        assert (facts.element_count, facts.size_bytes) == (tensor.n_elements, tensor.n_bytes)
