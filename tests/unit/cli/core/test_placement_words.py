"""Constraints as words, and explanations as lines."""

from typing import Any

import pytest

from cli.core.constraint_words import constraints_of_words
from cli.core.explain_text import explain_lines, prompt_lines
from cli.core.listing_rows import constraint_rows

GIB = 1 << 30


@pytest.mark.parametrize(
    ("word", "field"),
    [
        ("replicas_min=2", ("replicas_min", 2)),
        ("replicas-min=2", ("replicas_min", 2)),
        ("priority=-3", ("priority", -3)),
        ("devices=a/GPU-0,GPU-1", ("devices", ["a/GPU-0", "GPU-1"])),
        ("nodes=a", ("nodes", ["a"])),
        ("tensor_split=3,1.5", ("tensor_split", [3.0, 1.5])),
        ("pinned", ("pinned", True)),
        ("pinned=no", ("pinned", False)),
        ("pinned=", ("pinned", None)),
        ("replicas_min=", ("replicas_min", None)),
        ("keep_alive=10m", ("keep_alive", "10m")),
        ("keep_alive=-1", ("keep_alive", -1.0)),
        ("keep_alive=inf", ("keep_alive", "inf")),
        ("max_bytes=8GiB", ("max_bytes", {"*": 8 * GIB})),
        ("max_bytes=GPU-0:4G,GPU-1:500M", ("max_bytes", {"GPU-0": 4 * GIB, "GPU-1": 500 << 20})),
        ("max_shape=one_device", ("max_shape", "one_device")),
    ],
)
def test_a_word_is_a_field(word: str, field: tuple[str, object]) -> None:
    assert constraints_of_words([word]) == dict([field])


@pytest.mark.parametrize(
    "word", ["", "replicas_min", "replicas_min=two", "pinned=perhaps", "colour=red", "max_bytes=8X"]
)
def test_a_word_that_means_nothing_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        constraints_of_words([word])


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("tensor_split=nan,1", "tensor_split is numbers from 0 to 1000000, not 'nan'"),
        ("tensor_split=1,inf", "tensor_split is numbers from 0 to 1000000, not 'inf'"),
        ("tensor_split=1,-inf", "tensor_split is numbers from 0 to 1000000, not '-inf'"),
        ("tensor_split=1e999", "tensor_split is numbers from 0 to 1000000, not '1e999'"),
        ("tensor_split=3,-1", "tensor_split is numbers from 0 to 1000000, not '-1'"),
        ("tensor_split=0,0", "tensor_split needs a share above 0"),
        ("tensor_split=-0", "tensor_split needs a share above 0"),
        ("tensor_split=,", "tensor_split needs a share above 0"),
        ("tensor_split=half,half", "tensor_split is numbers, as in 3,1, not 'half,half'"),
        ("replicas_min=two", "replicas_min is a whole number, not 'two'"),
        ("num_gpu=nan", "num_gpu is a whole number, not 'nan'"),
        ("max_bytes=8X", "max_bytes: '8X' is no size; write 8GiB, 8GB or a number of bytes"),
        ("max_bytes=GPU-0:-1", "max_bytes: '-1' is no size; write 8GiB, 8GB or a number of bytes"),
    ],
)
def test_what_is_wrong_is_said_before_the_server_is_asked(word: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"\w") as caught:
        constraints_of_words([word])
    assert str(caught.value) == text


def test_rows_are_written_as_the_words_that_set_them() -> None:
    constraints = {"pinned": True, "replicas_min": 2, "devices": ["a", "b"], "max_bytes": {"*": 5}}
    rows = constraint_rows([{"model": "m:latest", "from_file": True, "constraints": constraints}])
    assert rows == [("m:latest", "file", "devices=a,b max_bytes=*:5 pinned replicas_min=2")]


ANSWER = {
    "model": "m:latest",
    "hypothetical": True,
    "outcome": "placed",
    "message": "",
    "replicas": [
        {
            "node": "a",
            "devices": ["GPU-1"],
            "allocated_bytes": 5_000_000_000,
            "predicted_bytes": 5_100_000_000,
            "context_length": 4096,
            "pinned": True,
        }
    ],
    "candidates": [
        {
            "node": "a",
            "shape": "one_device",
            "verdict": "chosen",
            "estimated": False,
            "devices": [
                {
                    "name": "GPU-0",
                    "need_bytes": 21_400_000_000,
                    "weights_bytes": 17_300_000_000,
                    "cache_bytes": 2_100_000_000,
                    "graph_bytes": 1_200_000_000,
                    "reserve_bytes": 450_000_000,
                    "reserve_source": "learned",
                    "margin_bytes": 350_000_000,
                    "available_bytes": 23_100_000_000,
                    "free_bytes": 24_000_000_000,
                    "promised_bytes": 600_000_000,
                    "overhead_bytes": 300_000_000,
                    "free_source": "nvml",
                    "free_age_ms": 400,
                }
            ],
        },
        {
            "node": "a",
            "shape": "one_device",
            "verdict": "short_bytes",
            "estimated": True,
            "devices": [
                {
                    "name": "GPU-1",
                    "need_bytes": 20_000_000_000,
                    "available_bytes": 8_000_000_000,
                    "free_bytes": 8_000_000_000,
                }
            ],
        },
        {"node": "b", "verdict": "device_excluded", "reason": "second pass died", "devices": [{"name": "GPU-2"}]},
        {
            "node": "a",
            "verdict": "gpu_required",
            "reason": "a GPU is required",
            "devices": [
                {"name": "CPU", "available_bytes": 3_000_000_000, "free_bytes": 4_000_000_000, "free_source": "cgroup"}
            ],
        },
    ],
    "victims": [{"model": "n:latest", "placement": "p2"}],
    "layout": {"slots": 4, "context_length": 32768},
    "measure_rounds": 3,
    "attempts": 1,
    "would_fit": ["num_ctx 8192 on a/GPU-1"],
}


def test_an_explanation_names_every_figure_what_goes_and_what_would_fit() -> None:
    chosen = (
        "need 21 GB = weights 17 GB + kv 2.1 GB + graph 1.2 GB + reserve 450 MB (learned) + margin 350 MB (measured), "
        "avail 23 GB of 24 GB free, 600 MB promised, 300 MB kept back (nvml, 0.4 s)"
    )
    short = (
        "need 20 GB = weights 0 B + kv 0 B + graph 0 B + reserve 0 B + margin 0 B (estimated), "
        "avail 8.0 GB of 8.0 GB free (unknown, 0.0 s), short 12 GB"
    )
    assert list(explain_lines(ANSWER, now_unix_s=0.0)) == [
        "m:latest: fits (now)",
        "loaded  a/GPU-1  holds 5.0 GB (planned 5.1 GB), num_ctx 4096, pinned",
        f"chosen  one_device  a/GPU-0  {chosen}  chosen",
        f"not     one_device  a/GPU-1  {short}  short_bytes",
        "not     b/GPU-2  second pass died  device_excluded",
        "not     a/CPU  avail 3.0 GB of 4.0 GB free (cgroup, 0.0 s)  a GPU is required  gpu_required",
        "evicts  n:latest (p2)",
        "auto    slots 4, num_ctx 32768, evicted 1, measured 3 rounds, attempts 1",
        "would fit  num_ctx 8192 on a/GPU-1",
    ]


FIGURES = {"drafted_tokens": 40, "accepted_tokens": 12, "drafters_off": 2, "call_ms": 6.12, "paying_share": 0.35}


@pytest.mark.parametrize(
    ("speculation", "text"),
    [
        ({"off_reason": "no way back"}, "off: no way back"),
        ({"call_ms": 0.0}, "for requests with speculative=on, durations of calls not measured yet"),
        (
            FIGURES,
            (
                "for requests with speculative=on, 12 of 40 right, 2 drafters switched off, "
                "pay from 35% right ones on (a call of one token takes 6.1 ms)"
            ),
        ),
        (
            {"call_ms": 6.12, "paying_share": None},
            "for requests with speculative=on, pay at no share of right ones (a call of one token takes 6.1 ms)",
        ),
    ],
)
def test_an_explanation_shows_what_decides_about_guessed_tokens(speculation: dict[str, Any], text: str) -> None:
    replica = {"node": "a", "devices": [], "speculation": speculation}
    _, _, line = explain_lines({"model": "m", "replicas": [replica]}, now_unix_s=0.0)
    assert line == f"drafts  a/CPU  {text}"


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"limit": "free"}, ""),
        ({"limit": "promised", "total_bytes": 9_000_000_000}, ", limited by what is promised of 9.0 GB"),
        ({"limit": "max_bytes", "max_bytes": 2_000_000_000}, ", limited by max_bytes 2.0 GB of the device"),
        ({"limit": "model_max_bytes", "max_bytes": 3_000_000_000}, ", limited by max_bytes 3.0 GB of the model"),
        ({"limit": "server_in_use"}, ", its RPC server serves one placement at a time"),
        ({"pool": "host"}, ", of the pool host"),
        ({"speed_bytes_s": 550e9, "speed_source": "like devices"}, ", reads 550 GB/s (like devices)"),
        (
            {"lent_to": [{"placement": "p7", "model": "big:latest", "node": "b"}]},
            ", lent to placement p7 of model big:latest on node b",
        ),
    ],
)
def test_what_left_less_than_what_is_free_is_told_beside_the_figures(said: dict[str, object], text: str) -> None:
    figures = {"available_bytes": 1_000_000_000, "free_bytes": 4_000_000_000, "free_source": "nvml", "free_age_ms": 100}
    candidate = {"node": "a", "verdict": "device_excluded", "devices": [{"name": "GPU-0", **figures, **said}]}
    (line,) = [
        one for one in explain_lines({"model": "m", "candidates": [candidate]}, now_unix_s=0.0) if one.startswith("not")
    ]
    assert line == f"not     a/GPU-0  avail 1.0 GB of 4.0 GB free (nvml, 0.1 s){text}  device_excluded"


def test_free_bytes_that_are_left_alone_are_told() -> None:
    figures = {"available_bytes": 1, "free_bytes": 4_000_000_000, "backoff_bytes": 400_000_000, "free_source": "nvml"}
    candidate = {"node": "a", "verdict": "short_bytes", "devices": [{"name": "GPU-0", **figures}]}
    (line,) = [
        one for one in explain_lines({"model": "m", "candidates": [candidate]}, now_unix_s=0.0) if one.startswith("not")
    ]
    assert "4.0 GB free, 400 MB left alone (nvml" in line


def test_an_answer_without_a_decision_says_what_it_waits_for() -> None:
    answer = {"model": "m:latest", "outcome": "busy", "message": "waiting for memory", "waits_for": "evicted models"}
    lines = list(explain_lines({**answer, "age_s": 3.2}, now_unix_s=0.0))
    assert lines == ["m:latest: has to wait (3 s ago): waiting for memory", "waits for evicted models"]


def test_a_model_that_crashes_shows_where_and_when_it_is_tried_again_and_what_tries_it_at_once() -> None:
    row = {
        "model": "m:latest", "node": "a", "crashes": 3, "retry_at_unix_ms": 1_002_000, "error": "signal 9",
        "excluded_until_unix_ms": 1_300_000,
    }  # fmt: skip
    answer = {"model": "m:latest", "outcome": "placed", "hypothetical": True, "crash_rows": [row]}
    _, line = explain_lines(answer, now_unix_s=1000.0)
    assert line == (
        "crashes a  crashed 3 times in a row, next try in 2 seconds, other nodes are preferred for 5 minutes: "
        "signal 9; `puna load m:latest` tries it at once"
    )
    _, later = explain_lines({**answer, "crash_rows": [{**row, "excluded_until_unix_ms": None}]}, now_unix_s=1003.0)
    assert later == (
        "crashes a  crashed 3 times in a row, next try with the next request: signal 9; "
        "`puna load m:latest` tries it at once"
    )


def test_the_choice_for_a_prompt_is_shown_with_what_each_replica_holds_and_predicts() -> None:
    row = {"placement": "p1", "node": "a", "slots_total": 4, "slots_free": 1, "goes_on_from": "ram", "is_chosen": True}
    held = [{"place": "slots", "tokens": 64, "restore_ms": None}, {"place": "ram", "tokens": 640, "restore_ms": 12.3}]
    other = {"placement": "p2", "node": "b", "slots_total": 4, "slots_free": 4, "held": [], "is_chosen": False}
    answer = {
        "model": "demo:latest",
        "message": "why",
        "prompt_tokens": 700,
        "prompt_bytes": 2800,
        "brings_from": "c",
        "replicas": [
            {**row, "held": held, "first_token_ms": 80.4, "slowdown_ms": 3.0},
            {**other, "goes_on_from": None, "first_token_ms": None, "slowdown_ms": None},
        ],
    }
    title, chosen, *others = prompt_lines(answer)
    assert title == "demo:latest: why (700 tokens, 2800 bytes)"
    assert chosen.startswith(
        "chosen  a/p1  slots 1 of 4 free, holds 64 tokens in slots, 640 tokens in ram (restore 12 ms)"
    )
    assert chosen.endswith(", first token 80 ms, slowdown 3 ms (goes on from ram)")
    assert others == [
        "fits    b/p2  slots 4 of 4 free, holds nothing, first token not measured yet (goes on from nothing)",
        "brings  a state from c, if that is faster",
    ]
