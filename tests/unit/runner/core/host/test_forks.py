"""Runners that are forked, and what is asked of the zygote for them."""

import os

import pytest

from runner.core.host.environment import HIDING
from runner.core.host.forks import FORKED_MODES, ForkRequest, can_fork


def test_a_request_comes_out_as_it_went_in() -> None:
    words = ["python", "-m", "runner", "inspect", os.fsdecode(b"/models/\xff.gguf"), "", "ä\n"]
    request = ForkRequest(words=words, environment={"LANG": "C", "EMPTY": ""}, places=[7, 12])
    assert ForkRequest.decode(request.encode()) == request


@pytest.mark.parametrize(
    ("words", "variables", "forks"),
    [
        *((["python", "-m", "runner", mode], {}, True) for mode in FORKED_MODES),
        (["python", "-m", "runner", "serve"], {"CUDA_VISIBLE_DEVICES": "GPU-1"}, True),
        (["python", "-m", "runner", "serve"], HIDING["Vulkan"], True),
        (["python", "-m", "runner", "serve"], HIDING["ROCm"], False),  # read when its library is loaded
        (["python", "-m", "runner", "serve"], {"CUDA_VISIBLE_DEVICES": "", "LD_LIBRARY_PATH": "/x"}, False),
        (["python", "-m", "runner", "probe"], {}, False),  # loads the drivers of now
        (["python", "-m", "runner"], {}, False),
        (["other", "-m", "runner", "serve"], {}, False),
        (["python", "script.py"], {}, False),
    ],
)
def test_a_command_is_forked_if_a_fork_would_become_the_same(
    words: list[str], variables: dict[str, str], forks: bool
) -> None:
    assert can_fork(words, interpreter="python", own_variables=variables) is forks
