"""Variables of the host's environment that a runner gets."""

import pytest

from runner.core.host.environment import (
    HIDING,
    VisibleDevice,
    cards_left,
    child_environment,
    device_environment,
    hide,
    limit_visibility,
    limits_set,
)


@pytest.mark.behaviour("B-132")
def test_a_runner_gets_the_allow_list_and_nothing_else() -> None:
    given = {
        "PATH": "/bin",
        "PUNA_REDIS_URL": "redis://:secret@r",
        "AWS_SECRET_ACCESS_KEY": "s",
        "LC_ALL": "C",
        "LD_PRELOAD": "/x.so",
        "OMP_NUM_THREADS": "2",
        "PUNA_DEBUG": "1",
    }
    passed = child_environment(given)
    assert {name for name in given if name in passed} == {"PATH", "LC_ALL", "OMP_NUM_THREADS", "PUNA_DEBUG"}


@pytest.mark.behaviour("B-132")
@pytest.mark.parametrize(
    "name",
    [
        *("CUDA_MPS_PIPE_DIRECTORY", "CUDA_CACHE_PATH", "CUDA_MODULE_LOADING", "HSA_ENABLE_SDMA", "VK_ICD_FILENAMES"),
        "GLIBC_TUNABLES",
    ],
)
def test_what_a_driver_or_the_allocator_is_told_reaches_the_runner(name: str) -> None:
    assert child_environment({name: "x"})[name] == "x"


@pytest.mark.behaviour("B-132")
def test_cards_are_numbered_by_address_and_nothing_else_is_set_for_them() -> None:
    assert child_environment({}) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "GGML_NO_BACKTRACE": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def test_what_the_user_hid_from_the_engine_stays_hidden() -> None:
    assert child_environment({"CUDA_VISIBLE_DEVICES": "1"})["CUDA_VISIBLE_DEVICES"] == "1"


FIRST = VisibleDevice(id="GPU-1", backend="CUDA", uuid="GPU-1")
SECOND = VisibleDevice(id="GPU-2", backend="CUDA", uuid="GPU-2")
LENT = VisibleDevice(id="RPC:127.0.0.1:5/0", backend="RPC")


def test_a_runner_sees_only_its_cards_by_uuid_and_in_the_order_of_its_layers() -> None:
    assert limit_visibility([SECOND, FIRST], backends=["CPU", "CUDA"]) == {"CUDA_VISIBLE_DEVICES": "GPU-2,GPU-1"}


def test_what_rocm_counts_anew_is_counted_among_the_cards_that_are_shown() -> None:
    """Else a number that the user wrote, or CUDA's variable, would hide what was chosen."""
    cards = [VisibleDevice(id=f"GPU-{number}", backend="ROCm", uuid=f"GPU-{number}") for number in (5, 3)]
    assert limit_visibility(cards, backends=["ROCm"]) == {
        "ROCR_VISIBLE_DEVICES": "GPU-5,GPU-3",
        "HIP_VISIBLE_DEVICES": "0,1",
        "GPU_DEVICE_ORDINAL": "0,1",
    }


def test_a_runner_without_cards_sees_none_and_pays_for_no_context() -> None:
    assert limit_visibility([LENT], backends=["CUDA", "ROCm", "RPC"]) == {
        "CUDA_VISIBLE_DEVICES": "-1",
        "ROCR_VISIBLE_DEVICES": "-1",
    }
    assert limit_visibility([LENT], backends=["CPU", "RPC"]) == {}


def test_a_card_of_which_no_uuid_is_known_is_not_hidden_by_mistake() -> None:
    assert limit_visibility([VisibleDevice(id="CUDA:CUDA0", backend="CUDA")], backends=["CUDA"]) == {}


@pytest.mark.behaviour("B-132")
def test_nothing_is_set_for_a_device_but_what_the_operator_wrote_and_its_own_words_win() -> None:
    settings = {"*": {"A": "all", "B": "all"}, "GPU-1": {"A": "one"}, "GPU-9": {"C": "other"}}
    assert device_environment([FIRST], settings) == {"A": "one", "B": "all"}
    assert device_environment([FIRST], {}) == {}
    assert device_environment([], settings) == {"A": "all", "B": "all"}


def test_the_users_own_limits_are_found_to_be_told() -> None:
    assert limits_set({"CUDA_VISIBLE_DEVICES": "0", "HOME": "/", "HSA_OVERRIDE_GFX_VERSION": "10.3.0"}) == {
        "CUDA_VISIBLE_DEVICES": "0",
        "HSA_OVERRIDE_GFX_VERSION": "10.3.0",
    }


@pytest.mark.parametrize(
    ("backend", "limits", "left"),
    [
        ("CUDA", {}, ["GPU-a1", "GPU-a2", "GPU-b"]),
        ("CUDA", {"CUDA_VISIBLE_DEVICES": "2,0"}, ["GPU-b", "GPU-a1"]),
        ("CUDA", {"CUDA_VISIBLE_DEVICES": "GPU-b, 1"}, ["GPU-b", "GPU-a2"]),
        ("CUDA", {"CUDA_VISIBLE_DEVICES": "1,7,0"}, ["GPU-a2"]),  # the list ends at what is not there
        ("CUDA", {"CUDA_VISIBLE_DEVICES": "-1"}, []),
        ("CUDA", {"CUDA_VISIBLE_DEVICES": ""}, []),
        ("CUDA", {"HIP_VISIBLE_DEVICES": "0"}, ["GPU-a1", "GPU-a2", "GPU-b"]),
        ("ROCm", {"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, ["GPU-b"]),
        ("", {"CUDA_VISIBLE_DEVICES": "0"}, ["GPU-a1", "GPU-a2", "GPU-b"]),
    ],
)
def test_the_users_limits_are_read_as_drivers_read_them(backend: str, limits: dict[str, str], left: list[str]) -> None:
    assert cards_left(["GPU-a1", "GPU-a2", "GPU-b"], backend=backend, limits=limits) == left


def test_a_backend_is_hidden_whole_and_one_without_a_way_is_not() -> None:
    assert hide(["CUDA"]) == {"CUDA_VISIBLE_DEVICES": "-1"}
    assert hide(["Vulkan"])["GGML_DISABLE_VULKAN"] == "1"
    assert hide(["CPU", "RPC"]) == {}
    assert hide(HIDING).keys() >= {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES"}
