"""What a runner sees of the host's environment."""

import pytest

from runner.core.environment import child_environment


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
