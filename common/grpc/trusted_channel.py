"""Channel with a certificate that is renewed: new calls use the newest one, running calls stay where they are."""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
from grpc import aio

from common.trust.identity import IdentitySource, Material
from common.trust.roles import host_name_of

if TYPE_CHECKING:  # the stubs lack the abstract class
    Base = aio.Channel
else:
    from grpc.aio._base_channel import Channel as Base


def credentials_to(peer: str, material: Material) -> tuple[grpc.ChannelCredentials, list[tuple[str, Any]]]:
    """Return credentials, and the options by which TLS compares the role of the server; `peer`: as `open_channel`."""
    pair = material.pair
    name = host_name_of(peer or str(material.facts.name))
    credentials = grpc.ssl_channel_credentials(material.authorities, pair.key, pair.certificate)
    return credentials, [("grpc.ssl_target_name_override", name)]


class TrustedChannel(Base):
    """TLS to the holder of a role. Lives on the event loop that makes the first call."""

    def __init__(self, address: str, peer: str, identity: IdentitySource, options: list[tuple[str, Any]]) -> None:
        """`peer`: as `open_channel`."""
        self._address = address
        self._peer = peer
        self._identity = identity
        self._options = options
        self._newest: _Connection | None = None
        self._older: set[_Connection] = set()  # that calls still run on
        self._closing: set[asyncio.Task[None]] = set()

    def _current(self) -> "_Connection":
        material = self._identity.material()
        before = self._newest
        if before is None or material is not before.material:
            self._newest = _Connection(material, self._open(material))
            if before is not None:
                self._older.add(before)
                self._close_if_unused(before)
            return self._newest
        return before

    def _open(self, material: Material) -> aio.Channel:
        credentials, options = credentials_to(self._peer, material)
        return aio.secure_channel(self._address, credentials, options=[*self._options, *options])

    def _close_if_unused(self, connection: "_Connection") -> None:
        if connection in self._older and not connection.calls:
            self._older.discard(connection)
            task = asyncio.get_running_loop().create_task(connection.channel.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self, grace: float | None = None) -> None:
        """Close the connections; running calls end."""
        open_ones = [*self._older, *([self._newest] if self._newest is not None else [])]
        await asyncio.gather(*(one.channel.close(grace) for one in open_ones), *self._closing)

    async def __aenter__(self) -> "TrustedChannel":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Return the state of the newest connection."""
        return self._current().channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Wait until the newest connection has another state."""
        await self._current().channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Wait until the newest connection is ready."""
        await self._current().channel.channel_ready()

    def unary_unary(self, *arguments: Any, **named: Any) -> Any:
        """Return a method of one request and one response."""
        return self._method("unary_unary", arguments, named)

    def unary_stream(self, *arguments: Any, **named: Any) -> Any:
        """Return a method of one request and many responses."""
        return self._method("unary_stream", arguments, named)

    def stream_unary(self, *arguments: Any, **named: Any) -> Any:
        """Return a method of many requests and one response."""
        return self._method("stream_unary", arguments, named)

    def stream_stream(self, *arguments: Any, **named: Any) -> Any:
        """Return a method of many requests and many responses."""
        return self._method("stream_stream", arguments, named)

    def _method(self, kind: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        latest: tuple[_Connection, Any] | None = None  # the method is registered with each channel once

        def call(*call_arguments: Any, **options: Any) -> Any:
            nonlocal latest
            connection = self._current()
            if latest is None or latest[0] is not connection:
                latest = connection, getattr(connection.channel, kind)(*arguments, **named)
            started = latest[1](*call_arguments, **options)
            connection.calls += 1
            started.add_done_callback(lambda _: self._end(connection))
            return started

        return call

    def _end(self, connection: "_Connection") -> None:
        connection.calls -= 1
        self._close_if_unused(connection)


@dataclass(slots=True, eq=False)
class _Connection:
    """A channel of one certificate, and the number of calls that run on it."""

    material: Material
    channel: aio.Channel
    calls: int = 0
