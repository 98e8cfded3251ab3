import asyncio
import socket
from typing import Any

import pytest

from common.grpc.addresses import FORGET_S, RESOLVE_S, Channels, resolve

Rows = list[tuple[Any, ...]]


class Names:
    """A name service of the test's own in the place of the system's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.known: dict[str, list[str]] = {}
        self.asked: list[str] = []
        monkeypatch.setattr(asyncio.get_running_loop().__class__, "getaddrinfo", self._answer)

    async def _answer(self, host: str, port: int, **_options: object) -> Rows:
        self.asked.append(host)
        if host not in self.known:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        families = [(socket.AF_INET6 if ":" in one else socket.AF_INET, one) for one in self.known[host]]
        return [(family, socket.SOCK_STREAM, 6, "", (one, port)) for family, one in families]


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def now_s(self) -> float:
        return self.now

    def wall_unix_s(self) -> float:
        return self.now


@pytest.fixture
async def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)


async def test_a_name_stands_for_each_of_its_addresses(names: Names) -> None:
    names.known["scheduler"] = ["10.0.0.2", "10.0.0.1", "10.0.0.2"]
    assert await resolve("scheduler:7602, 10.0.0.9:1") == ["10.0.0.1:7602", "10.0.0.2:7602", "10.0.0.9:1"]


async def test_of_two_families_one_is_dialled_because_it_is_the_same_process(names: Names) -> None:
    names.known["both"] = ["fd00::1", "10.0.0.1"]
    names.known["new"] = ["fd00::2"]
    assert await resolve("both:1,new:2") == ["10.0.0.1:1", "[fd00::2]:2"]


async def test_what_is_here_is_not_looked_up_and_what_nobody_knows_stays_as_it_is(names: Names) -> None:
    assert await resolve("localhost:1,127.0.0.1:2,unix:/run/x,gone:3") == [
        "localhost:1",
        "127.0.0.1:2",
        "unix:/run/x",
        "gone:3",
    ]
    assert names.asked == ["gone"]


async def test_channels_follow_the_name_service_after_a_while_and_calls_may_end_first(names: Names) -> None:
    clock = Hand()
    channels = Channels("scheduler:7602", clock)
    names.known["scheduler"] = ["10.0.0.1", "10.0.0.2"]
    first = await channels.get()
    names.known["scheduler"] = ["10.0.0.2", "10.0.0.3"]
    assert await channels.get() == first
    clock.now += RESOLVE_S
    second = await channels.get()
    assert second[0] is first[1]
    assert second[1] not in first
    clock.now += FORGET_S
    await channels.get()
    names.known["scheduler"] = ["10.0.0.1"]
    clock.now += RESOLVE_S
    assert (await channels.get())[0] is not first[0], "it was closed, so another one was opened"
    await channels.close()
