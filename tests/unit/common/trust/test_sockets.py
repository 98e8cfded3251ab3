"""Sockets in directories of other users, or that others can write, are neither listened on nor connected to."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.grpc.client import open_channel
from common.grpc.server import bind_server
from common.startup_error import StartupError

DEADLINE_S = 30.0
OTHER_USER = 12345


def open_to_all(directory: Path) -> None:
    directory.chmod(0o777)


def open_to_all_but_sticky(directory: Path) -> None:
    directory.chmod(0o1777)


def open_to_the_group(directory: Path) -> None:
    directory.chmod(0o770)


def give_away(directory: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    os.chown(directory, OTHER_USER, -1)


async def health_code(address: str) -> StatusCode:
    async with open_channel(address) as channel:
        call = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE_S)  # type: ignore[attr-defined]
        code: StatusCode = await call.code()
        return code


@pytest.mark.parametrize("expose", [open_to_all, open_to_all_but_sticky, open_to_the_group, give_away])
async def test_a_directory_that_others_can_write_has_no_sockets(expose: Callable[[Path], None], tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    address = f"unix:{directory}/one.sock"
    server = bind_server(address, register=lambda _: None, services=[])
    await server.start()
    try:
        assert await health_code(address) is StatusCode.OK
        expose(directory)
        assert await health_code(address) is StatusCode.UNAVAILABLE
        with pytest.raises(StartupError, match=str(directory)):
            bind_server(f"unix:{directory}/two.sock", register=lambda _: None, services=[])
    finally:
        await server.stop(0)


async def test_other_users_cannot_connect_to_a_socket_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        server = bind_server(f"unix:{tmp_path}/one.sock", register=lambda _: None, services=[])
        assert os.umask(0) == 0
    finally:
        os.umask(before)
    await server.start()
    mode = (tmp_path / "one.sock").stat().st_mode
    await server.stop(0)
    assert stat.S_ISSOCK(mode)
    assert mode & (stat.S_IRWXG | stat.S_IRWXO) == 0
