"""What a runner sees of the host's environment."""

import pytest

from runner.core.environment import (
    VisibleDevice,
    child_environment,
    device_environment,
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
def test_cards_are_numbered_by_address_and_nothing_else_is_set_for_them() -> None:
    assert child_environment({}) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "GGML_NO_BACKTRACE": "1"}


def test_what_the_user_hid_from_the_engine_stays_hidden() -> None:
    assert child_environment({"CUDA_VISIBLE_DEVICES": "1"})["CUDA_VISIBLE_DEVICES"] == "1"


FIRST = VisibleDevice(id="GPU-1", backend="CUDA", uuid="GPU-1")
SECOND = VisibleDevice(id="GPU-2", backend="CUDA", uuid="GPU-2")
LENT = VisibleDevice(id="RPC:127.0.0.1:5/0", backend="RPC")


def test_a_runner_sees_only_its_cards_by_uuid_and_in_the_order_of_its_layers() -> None:
    assert limit_visibility([SECOND, FIRST], backends=["CPU", "CUDA"]) == {"CUDA_VISIBLE_DEVICES": "GPU-2,GPU-1"}


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
