"""Lines of pulls and tables of shown models, as a pipe gets them."""

from typing import Any

import pytest

from cli.core.modelfile import looks_like_path, models_in, with_other_parts
from cli.core.news import PlainNews, bar_of
from cli.core.shown_model import sections

DIGEST = "sha256:" + "ab" * 32


def said(*news: dict[str, Any]) -> list[str]:
    plain = PlainNews()
    return [line for one in news for line in plain.lines(one)]


def test_a_pipe_gets_each_step_once_and_each_blob_twice() -> None:
    blob = {"status": "pulling abababababab", "digest": DIGEST, "total": 4_700_000_000}
    lines = said(
        {"status": "pulling manifest"},
        blob | {"completed": 0},
        blob | {"completed": 1_000},
        blob | {"completed": 4_700_000_000},
        blob | {"completed": 4_700_000_000},
        {"status": "writing manifest"},
        {"status": "success", "peers": ["gpu-1", "gpu-2"]},
    )
    assert lines == [
        "pulling manifest",
        "pulling abababababab (4.7 GB)",
        "abababababab is there",
        "writing manifest",
        "success, from gpu-1, gpu-2",
    ]


def test_a_blob_of_unknown_size_has_no_bar() -> None:
    assert bar_of({"status": "pulling", "digest": DIGEST}) is None
    bar = bar_of({"status": "pulling", "digest": DIGEST, "total": 10, "completed": 11})
    assert bar is not None
    assert bar.done_bytes == 10


SHOWN: dict[str, Any] = {
    "license": "MIT",
    "parameters": 'stop                           "</s>"\ntemperature                    0.5',
    "system": "Be brief.",
    "details": {"family": "llama", "parameter_size": "3.2M", "quantization_level": "Q8_0", "parent_model": "demo"},
    "messages": [{"role": "user", "content": "a\nb"}],
    "model_info": {"general.architecture": "llama", "llama.context_length": 2048, "llama.embedding_length": 256},
    "capabilities": ["completion", "tools"],
    "puna": {
        "digest": "ab" * 32,
        "template_source": "gguf",
        "measured": [
            {
                "context_length": 512,
                "slots": 4,
                "node": "n1",
                "devices": [{"name": "GPU", "bytes": 120_000_000}],
                "host_bytes": 3_000_000,
            }
        ],
    },
}


def test_a_shown_model_has_a_section_for_everything_it_says() -> None:
    found = dict(sections("mine", SHOWN))
    assert ("context length", "2048") in found["Model"]
    assert ("made from", "demo") in found["Model"]
    assert found["Capabilities"] == [("completion", ""), ("tools", "")]
    assert found["Parameters"] == [("stop", '"</s>"'), ("temperature", "0.5")]
    assert found["Loaded"] == [("4 × 512 tokens on n1", "GPU 120 MB, RAM 3.0 MB")]
    assert found["System"] == [("Be brief.", "")]
    assert found["Messages"] == [("user", "a b")]
    assert found["License"] == [("MIT", "")]


def test_a_long_license_is_cut_and_empty_sections_are_left_out() -> None:
    found = dict(sections("plain", {"license": "\n".join("abcdefghijkl")}))
    assert len(found["License"]) == 9
    assert found["License"][-1] == ("…", "")
    assert set(found) == {"Model", "License"}


def test_one_part_of_a_split_file_means_all_of_them() -> None:
    parts = [f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    assert with_other_parts(parts[1], parts) == parts
    assert with_other_parts("m.gguf", ["m.gguf"]) == ["m.gguf"]
    with pytest.raises(ValueError, match=r"m-00002-of-00003\.gguf is missing"):
        with_other_parts(parts[0], [parts[0], parts[2]])


def test_paths_are_told_from_names() -> None:
    assert looks_like_path("./m")
    assert looks_like_path("weights.GGUF")
    assert looks_like_path("/models/x")
    assert not looks_like_path("llama3:8b")
    assert not looks_like_path("hf.co/user/repo-GGUF:Q4_K_M")
    assert models_in(["b.gguf", "a.GGUF", "readme"]) == ["a.GGUF", "b.gguf"]
