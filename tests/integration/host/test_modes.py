"""The engine's short-lived modes as processes: probe, inspect, measure."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.spec.layout import Layout
from runner.core.model.model_files import ModelFiles
from runner.inspect import describe_file
from runner.measure import measure
from tests.limited_device import limited_device
from tests.ports import free_port
from tools.model_zoo import build, damage

ROOT = Path(__file__).resolve().parents[3]
MIB = 1024 * 1024
LENT_MIB = 100


def run_mode(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "runner", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def answer(*arguments: str) -> dict[str, Any]:
    done = run_mode(*arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def lent() -> Iterator[str]:
    """The endpoint of a process that lends one device."""
    with limited_device(mib=LENT_MIB) as device:
        yield device.address


@pytest.mark.behaviour("B-130", "B-131")
def test_the_probe_lists_the_cpu_with_ram_from_the_kernel_and_not_from_the_engine() -> None:
    report = answer("probe")
    (cpu,) = [device for device in report["devices"] if device["type"] == "DEVICE_TYPE_CPU"]
    assert (cpu["id"], cpu["pool_id"], cpu["id_stable"]) == ("cpu", "host", True)
    assert cpu["free_source"] in ("meminfo", "cgroup")
    assert 0 < int(cpu["free_bytes"]) < int(cpu["total_bytes"])
    assert {"CPU", "RPC"} <= set(report["backends"])
    assert "llama-cpp-python 0.3.36" in report["engine_build"]


def test_a_lent_device_is_listed_with_the_memory_that_its_server_reports(lent: str) -> None:
    report = answer("probe", "--rpc", lent)
    (device,) = [device for device in report["devices"] if device["backend"] == "RPC"]
    assert device["id"] == f"RPC:{lent}/0"
    assert device["type"] == "DEVICE_TYPE_GPU"
    assert int(device["free_bytes"]) == LENT_MIB * MIB
    assert device["free_source"] == "rpc"
    assert device["pool_id"] == f"RPC:{lent}"
    assert "id_stable" not in device  # false


def test_an_rpc_server_that_is_not_there_is_an_error_and_no_abort() -> None:
    port = free_port()
    done = run_mode("probe", "--rpc", f"127.0.0.1:{port}")
    assert done.returncode == 1
    assert f"127.0.0.1:{port} is no usable RPC server" in done.stderr


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("dense", "completion"),
        ("moe", "thinking"),
        ("embed_mean", "embedding"),
        ("reranker", "rerank"),
        ("recurrent", "completion"),
    ],
)
def test_inspect_describes_every_kind_of_model(tmp_path: Path, name: str, capability: str) -> None:
    description = answer("inspect", str(build(name, tmp_path)))
    assert capability in description["capabilities"]
    assert int(description["parameter_count"]) > 100_000
    assert description["vocabulary_size"] > 0
    assert description["layer_count"] > 0
    assert "general.architecture" in json.loads(description["metadata_json"])


def test_inspect_finds_template_and_special_tokens(dense: Path) -> None:
    description = answer("inspect", str(dense))
    assert "messages" in description["chat_template"]
    assert description["eos_token"] in description["special_tokens"]
    assert "tools" in description["capabilities"]
    longest = max(len(text.encode()) for text in description["special_tokens"])
    assert longest <= description["token_bytes_max"] < 1000


@pytest.mark.behaviour("B-83")
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("empty", "is empty"),
        ("text", "not a GGUF file"),
        ("bad-magic", "not a GGUF file"),
        ("bad-version", "version 99"),
        ("huge-tensor-count", "tensors, at most"),
        ("huge-entry-count", "keys, at most"),
        ("huge-string", "key name of"),
        ("cut-in-header", "truncated"),
        ("cut-before-data", "truncated"),
        ("cut-in-data", "truncated"),
        ("tensor-beyond-end", "ends at byte"),
    ],
)
def test_inspect_refuses_a_bad_file_with_path_and_reason(tmp_path: Path, kind: str, words: str) -> None:
    path = damage(build("tied", tmp_path), kind)
    done = run_mode("inspect", str(path))
    assert done.returncode == 3
    (line,) = done.stdout.splitlines()
    refusal = json.loads(line)
    assert refusal["reason"] == "bad_model_file"
    assert str(path) in refusal["message"]
    assert words in refusal["message"]


@pytest.mark.behaviour("B-83")
def test_a_missing_file_and_a_forbidden_one_carry_the_systems_reason(tmp_path: Path) -> None:
    done = run_mode("inspect", str(tmp_path / "none.gguf"))
    assert done.returncode == 3
    assert "No such file or directory (ENOENT)" in done.stdout
    done = run_mode("inspect", str(tmp_path))
    assert done.returncode == 3
    assert "(EISDIR)" in done.stdout


def test_a_file_with_a_vocabulary_alone_is_no_model(tmp_path: Path) -> None:
    import gguf

    path = tmp_path / "vocabulary.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    done = run_mode("inspect", str(path))
    assert done.returncode == 3
    assert "no tensors" in done.stdout


@pytest.mark.behaviour("B-66")
def test_measuring_reads_the_header_and_no_weights(tmp_path: Path) -> None:
    """The time depends on the machine, so bytes are counted, in a file that is mostly weights."""
    import gguf

    path = build("dense", tmp_path)
    header_bytes = gguf.GGUFReader(path).data_offset
    program = (
        "import os, sys; sys.argv = ['runner', 'measure', '--model', sys.argv[1]];"
        "from runner.__main__ import main; import runner.measure;"
        "count = lambda: int(open('/proc/self/io').read().split()[1]);"
        "before = count(); main(); print(count() - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    report, read_bytes = done.stdout.splitlines()
    assert int(json.loads(report)["host"]["weights_bytes"]) > 2 * MIB
    # The header is read more than once, in buffers that overlap; beside it only what the kernel says of the machine and
    # of the process, whose list of mappings is longer than the header.
    assert int(read_bytes) < 20 * header_bytes < path.stat().st_size / 3


@pytest.mark.behaviour("B-66")
def test_sizes_that_no_machine_has_are_answered_too(dense: Path) -> None:
    layout = json.dumps({"context_tokens": 100_000_000, "slots": 4})
    report = answer("measure", "--model", str(dense), "--layout", layout)
    assert report["origin"] == "MEMORY_ORIGIN_ESTIMATED"
    assert int(report["host"]["cache_bytes"]) > 2**39


def padded(cells: int) -> int:
    return -(-cells // 256) * 256


@pytest.mark.behaviour("B-44")
@pytest.mark.parametrize("context_tokens", [2048, 8192])
def test_each_kind_of_cache_has_the_cells_that_it_needs(tmp_path: Path, context_tokens: int) -> None:
    slots, batch_tokens, f16_bytes, f32_bytes = 2, 256, 2, 4
    layout = Layout(context_tokens=context_tokens, slots=slots, batch_tokens=batch_tokens)

    def cache_bytes(path: Path) -> int:
        # The last layer's entry is the output rows and the copies of prompts that the runner itself keeps.
        return sum(measure(ModelFiles(model=path), layout).host.layer_cache_bytes[:-1])

    def keys(path: Path) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(describe_file(path).metadata_json)
        return {name.partition(".")[2]: value for name, value in found.items()}

    def cell_bytes(of: dict[str, Any]) -> int:
        head = of["embedding_length"] // of["attention.head_count"]
        return int(2 * head * of["attention.head_count_kv"] * f16_bytes)

    dense, window, recurrent = (build(name, tmp_path) for name in ("dense", "swa", "recurrent"))
    full_cells = padded(context_tokens * slots)
    of = keys(dense)
    assert cache_bytes(dense) == full_cells * of["block_count"] * cell_bytes(of)
    of = keys(window)
    window_cells = padded(min(full_cells, of["attention.sliding_window"] * slots + batch_tokens))
    full_blocks = of["block_count"] // of["attention.sliding_window_pattern"]
    blocks_cells = full_blocks * full_cells + (of["block_count"] - full_blocks) * window_cells
    assert cache_bytes(window) == blocks_cells * cell_bytes(of)
    of = keys(recurrent)
    state = of["ssm.inner_size"] * (of["ssm.state_size"] + of["ssm.conv_kernel"] - 1)
    assert cache_bytes(recurrent) == state * f32_bytes * of["block_count"] * slots


@pytest.mark.behaviour("B-64", "B-69")
@pytest.mark.parametrize("name", ["dense", "rope_freqs", "rope_factors", "moe", "hybrid"])
def test_weights_are_those_of_the_tensor_table_each_counted_once(tmp_path: Path, name: str) -> None:
    import gguf

    path = build(name, tmp_path)
    table_bytes = sum(int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors)
    counted = measure(ModelFiles(model=path), Layout()).host.weights_bytes
    assert 0 <= counted - table_bytes <= 0.01 * table_bytes


@pytest.mark.behaviour("B-71")
def test_head_sizes_come_from_the_file_where_they_are_not_embedding_by_heads(tmp_path: Path) -> None:
    path = build("dense_wide_head", tmp_path)
    description = describe_file(path)
    keys = json.loads(description.metadata_json)
    architecture = description.architecture

    def number(name: str) -> int:
        return int(keys[f"{architecture}.{name}"])

    key_length, value_length = number("attention.key_length"), number("attention.value_length")
    assert key_length != number("embedding_length") // number("attention.head_count")
    cells, f16_bytes = 2 * 512, 2
    expected = (
        cells * number("block_count") * number("attention.head_count_kv") * (key_length + value_length) * f16_bytes
    )
    report = measure(ModelFiles(model=path), Layout(context_tokens=512, slots=2))
    assert sum(report.host.layer_cache_bytes[:-1]) == expected


@pytest.mark.behaviour("B-70")
def test_a_split_model_lies_where_the_layout_says(dense: Path, lent: str) -> None:
    device_id = f"RPC:{lent}/0"
    blocks = answer("inspect", str(dense))["layer_count"]

    def measured(layers: int) -> dict[str, Any]:
        devices = [{"device_id": device_id, "layer_count": layers}] if layers else []
        layout = {"devices": devices, "context_tokens": 512, "slots": 2}
        return answer("measure", "--model", str(dense), "--layout", json.dumps(layout), "--rpc", lent)

    nothing, half, everything = measured(0), measured(blocks // 2), measured(blocks + 1)
    assert "devices" not in nothing
    (on_half,), (on_all,) = half["devices"], everything["devices"]
    assert on_half["device_id"] == on_all["device_id"] == device_id
    # All offloaded: the cache lies on the device, and in host RAM only the token embedding.
    assert int(on_all["cache_bytes"]) >= 2 * int(on_half["cache_bytes"]) - MIB > 0
    assert 0 < int(everything["host"]["weights_bytes"]) < int(half["host"]["weights_bytes"])
    weights = [int(report["host"]["weights_bytes"]) for report in (nothing, half, everything)]
    on_device = [0, int(on_half["weights_bytes"]), int(on_all["weights_bytes"])]
    for host_bytes, device_bytes in zip(weights, on_device, strict=True):
        # A tied output is stored twice once it lies elsewhere than the embedding.
        assert abs(host_bytes + device_bytes - weights[0]) <= 300 * 1024


def test_a_layout_that_cannot_be_is_refused_with_its_own_status(dense: Path) -> None:
    done = run_mode("measure", "--model", str(dense), "--layout", '{"devices": [{"device_id": "x", "layer_count": 1}]}')
    assert done.returncode == 4
    assert "'x'" in done.stderr
    done = run_mode("measure", "--model", str(dense), "--layout", "{")
    assert done.returncode == 4


def test_no_mode_needs_more_than_a_part_of_the_environment(dense: Path) -> None:
    from runner.core.host.environment import child_environment

    done = subprocess.run(
        [sys.executable, "-m", "runner", "measure", "--model", str(dense)],
        cwd=ROOT,
        env=child_environment(os.environ),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0


def test_an_engine_without_rpc_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from runner import probe
    from runner.engine.bindings import ggml

    monkeypatch.setattr(ggml, "rpc_add_server", None)
    assert probe.run(argparse.Namespace(rpc=[], check="", hold="")) == 0
    assert "built without GGML_RPC" in capsys.readouterr().err
    assert probe.run(argparse.Namespace(rpc=["127.0.0.1:1"], check="", hold="")) == 1
    assert "run make setup" in capsys.readouterr().err


def test_a_machine_whose_engine_cannot_count_says_so_instead_of_guessing(
    dense: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from runner import measure as mode
    from runner.engine.bindings import cpp_map

    monkeypatch.setattr(cpp_map, "bind", lambda *_: None)  # as where the C++ library is another one
    monkeypatch.setattr(mode, "configure_logs", lambda **_: None)  # the log is that of this process
    asked = argparse.Namespace(model=dense, more=[], projector=None, adapter=[], layout="{}", rpc=[], draft=[])
    assert mode.run(asked) == mode.EXIT_UNAVAILABLE
    assert "cannot count memory on this machine" in capsys.readouterr().err
