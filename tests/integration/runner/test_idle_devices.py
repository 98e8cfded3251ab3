"""Tests of idle devices by the engine itself: they leave no trace, and show a device that hangs."""

import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest

from runner.core.model.model_files import ModelFiles
from runner.core.threads.step_times import EngineStep
from runner.engine.batched.engine import BatchedEngine
from runner.engine.batched.loop import BatchedOptions
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.contract import Driver, driven
from tests.integration.runner.devices import spread
from tests.limited_device import LimitedDevice, limited_device
from tests.waiting import wait_until

PROMPT = "The weather is cold in the morning. "
TESTS = 5


@pytest.fixture
def device() -> Iterator[LimitedDevice]:
    with limited_device(mib=128) as lent:
        yield lent


@pytest.fixture(params=[1, 2], ids=["the only slot holds a prompt", "a slot is empty"])
def driver(request: pytest.FixtureRequest, zoo: Zoo, device: LimitedDevice) -> Iterator[Driver]:
    """The batched engine on one device, which it tests all the time while nothing else is asked."""
    layout = spread((device,), (9,), slots=request.param)
    options = BatchedOptions(verify=True, idle_test_s=0.05)
    with driven(BatchedEngine(ModelFiles(model=zoo("dense")), layout, options)) as driver:
        yield driver


def wait_for_tests(driver: Driver) -> None:
    before = driver.engine.step.number
    wait_until(lambda: driver.engine.step.number >= before + 2 * TESTS, deadline_s=30, what="the device is tested")


def test_a_prompt_that_waits_in_the_cache_is_as_it_was_after_tests_of_the_idle_device(driver: Driver) -> None:
    driver.ask(PROMPT, max_tokens=16)
    first = driver.ask(PROMPT, max_tokens=16, top_logprobs=0)  # as the next one, from the cache
    wait_for_tests(driver)
    again = driver.ask(PROMPT, max_tokens=16, top_logprobs=0)
    assert again.ids == first.ids
    assert all(np.array_equal(one, other) for one, other in zip(again.rows, first.rows, strict=True))
    assert again.times is not None
    assert again.times.cached_tokens == len(driver.tokens(PROMPT)) - 1 + driver.engine.vocabulary.adds_bos


def test_an_idle_device_that_hangs_shows_as_a_step_that_does_not_end(driver: Driver, device: LimitedDevice) -> None:
    wait_for_tests(driver)
    seen: list[EngineStep] = []

    def hangs() -> bool:
        seen.append(driver.engine.step)
        newest = [step.number for step in seen[-TESTS * 10 :]]
        return len(newest) == TESTS * 10 and len(set(newest)) == 1 and newest[0] % 2 == 1

    os.kill(device.process.pid, signal.SIGSTOP)
    try:
        wait_until(hangs, deadline_s=30, what="a step does not end")
    finally:
        os.kill(device.process.pid, signal.SIGCONT)
    wait_for_tests(driver)
