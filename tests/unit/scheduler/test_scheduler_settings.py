"""Settings of operators, and the policy that follows from them."""

from math import inf

import pytest

from common.errors import StartupError
from common.spec.layout import FlashAttention
from scheduler.core.values.asked import SLOTS_AUTO, chosen_context_tokens, slot_steps, wanted_context_tokens
from scheduler.core.values.constraints import NO_CONSTRAINTS, Constraints, FillPolicy
from scheduler.settings import SchedulerSettings, parse_duration_ms


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [("5m", 300_000), ("1h30m", 5_400_000), ("250ms", 250), ("1.5s", 1500), ("0", 0), ("90", 90_000), ("-1", -1000)],
)
def test_durations_are_seconds_or_go_durations(text: str, duration_ms: int) -> None:
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize("text", ["", "five minutes", "5 m", "m", "1e400", "nan", "inf", "5m3"])
def test_anything_else_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"neither|out of range"):
        parse_duration_ms(text)


def test_the_environment_reaches_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PUNA_KEEP_ALIVE": "-1",
        "PUNA_LOAD_TIMEOUT": "2m",
        "PUNA_NUM_PARALLEL": "3",
        "PUNA_CONTEXT_LENGTH": "2048",
        "PUNA_MAX_QUEUE": "9",
        "PUNA_ENGINE": "reference",
    }.items():
        monkeypatch.setenv(name, value)
    policy = SchedulerSettings.load().policy()
    assert policy.keep_alive_ms < 0
    assert policy.load_stall_s == 120
    assert (policy.num_parallel, policy.context_tokens, policy.load_waiters_max) == (3, 2048, 9)
    assert policy.engine == "reference"


def test_what_holds_for_every_model_reaches_the_policy_as_default_constraints(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SchedulerSettings.load().policy().defaults == NO_CONSTRAINTS
    for name, value in {
        "OLLAMA_SCHED_SPREAD": "1",
        "OLLAMA_FLASH_ATTENTION": "0",
        "OLLAMA_KV_CACHE_TYPE": "Q8_0",
        "OLLAMA_LLM_LIBRARY": "cuda_v12",
    }.items():
        monkeypatch.setenv(name, value)
    assert SchedulerSettings.load().policy().defaults == Constraints(
        backend="CUDA",
        policy=FillPolicy.SPREAD,
        cache_type_k="q8_0",
        cache_type_v="q8_0",
        flash_attention=FlashAttention.OFF,
    )
    monkeypatch.setenv("PUNA_LLM_LIBRARY", "Vulkan")
    monkeypatch.setenv("PUNA_FLASH_ATTENTION", "on")
    monkeypatch.setenv("OLLAMA_KV_CACHE_TYPE", "q9")
    defaults = SchedulerSettings.load().policy().defaults
    assert (defaults.backend, defaults.flash_attention, defaults.cache_type_k) == ("Vulkan", FlashAttention.ON, "")


@pytest.mark.parametrize(("given", "stall_s"), [("0", inf), ("-1", inf), ("90", 90), ("2m", 120)])
def test_a_load_timeout_of_nothing_or_less_never_ends(
    monkeypatch: pytest.MonkeyPatch, given: str, stall_s: float
) -> None:
    monkeypatch.setenv("OLLAMA_LOAD_TIMEOUT", given)
    assert SchedulerSettings.load().policy().load_stall_s == stall_s


@pytest.mark.parametrize(
    ("name", "value"),
    [("FLASH_ATTENTION", "maybe"), ("KV_CACHE_TYPE", "q9_0"), ("SCHED_SPREAD", "some"), ("LLM_LIBRARY", "a/b")],
)
def test_a_default_that_nothing_can_mean_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"PUNA_{name}", value)
    with pytest.raises(StartupError, match=f"PUNA_{name}"):
        SchedulerSettings.load()


@pytest.mark.parametrize(
    ("name", "value"), [("KEEP_ALIVE", "soon"), ("NUM_PARALLEL", "-1"), ("NUM_PARALLEL", "many"), ("MAX_QUEUE", "0")]
)
def test_a_bad_value_stops_the_start_and_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"PUNA_{name}", value)
    with pytest.raises(StartupError, match=f"PUNA_{name}"):
        SchedulerSettings.load()


@pytest.mark.parametrize(
    ("asked", "trained", "wanted"),
    [(None, 8192, None), (2048, 8192, 2048), (1, 8192, 4), (9999, 8192, 8192), (9999, 0, 9999)],
)
def test_what_a_request_needs_of_a_replica(asked: int | None, trained: int, wanted: int | None) -> None:
    assert wanted_context_tokens(asked, trained=trained) == wanted


@pytest.mark.parametrize(
    ("wanted", "configured", "trained", "chosen"),
    [
        (None, 0, 8192, 4096),
        (None, 0, 2048, 2048),
        (None, 16384, 8192, 8192),
        (None, 512, 8192, 512),
        (6000, 512, 8192, 6000),
    ],
)
def test_the_context_of_a_new_replica(wanted: int | None, configured: int, trained: int, chosen: int) -> None:
    assert chosen_context_tokens(wanted, configured=configured, trained=trained) == chosen


def test_a_model_that_sees_has_room_for_an_image() -> None:
    assert wanted_context_tokens(512, trained=8192, sees=True) == 2048
    assert wanted_context_tokens(512, trained=1024, sees=True) == 1024
    assert wanted_context_tokens(None, trained=8192, sees=True) is None
    assert chosen_context_tokens(None, configured=512, trained=8192, sees=True) == 2048
    assert chosen_context_tokens(None, configured=0, trained=8192, sees=True) == 4096


def test_slots_step_down_unless_they_were_named() -> None:
    assert slot_steps(0) == SLOTS_AUTO
    assert slot_steps(3) == (3,)
