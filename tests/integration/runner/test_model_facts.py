"""Bytes by the header of a model, against the engine's count."""

import json
import subprocess
import sys

import pytest
from google.protobuf import json_format

from common.spec.layout import Layout
from protos import cluster_pb2
from runner.inspect import describe_file
from scheduler.converters import MEMORY_REPORT, to_facts
from scheduler.core.sizes.estimate import cache_bytes
from tests.integration.runner.conftest import Zoo

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
