"""HTTP connections to registries, and to the targets of their redirects, whose addresses are judged."""

import asyncio
import socket
from urllib.request import getproxies_environment, proxy_bypass

import httpx

from runner.core.registry.addresses import Reach, check_target, reach_of

REACH = "puna.reach"
"""Extension of a request: the reach that its target may have; without it the operator named the target.

Extension of a response: the reach of the address that answered.
"""


class RegistryTransport(httpx.AsyncBaseTransport):
    """Connects directly, or through the proxies of the environment, which resolve names themselves."""

    def __init__(self, *, connect_timeout_s: float) -> None:
        self._connect_timeout_s = connect_timeout_s
        context = httpx.create_ssl_context()  # 30 ms: one for all
        self._direct = httpx.AsyncHTTPTransport(verify=context)
        # A pool knows the address of a connection, not the name that its certificate was checked for: none is reused.
        self._pinned = httpx.AsyncHTTPTransport(verify=context, limits=httpx.Limits(max_keepalive_connections=0))
        self._proxies = {
            scheme: httpx.AsyncHTTPTransport(verify=context, proxy=address if "://" in address else f"http://{address}")
            for scheme, address in getproxies_environment().items()
            if scheme in ("http", "https", "all")
        }

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request.

        Raises:
            RegistryFailed: the target of a redirect lies at an address that is not followed.
        """
        if proxy := self._proxy_of(request.url):
            answer = await proxy.handle_async_request(request)
            answer.extensions[REACH] = Reach.PUBLIC  # the address of the proxy says nothing about the server's
            return answer
        allowed = request.extensions.get(REACH)
        if allowed is None:
            answer = await self._direct.handle_async_request(request)
        else:
            answer = await self._send_pinned(request, allowed)
        address = answer.extensions["network_stream"].get_extra_info("server_addr")
        answer.extensions[REACH] = reach_of(address[0])
        return answer

    async def aclose(self) -> None:
        """Close every connection."""
        for transport in (self._direct, self._pinned, *self._proxies.values()):
            await transport.aclose()

    def _proxy_of(self, url: httpx.URL) -> httpx.AsyncHTTPTransport | None:
        proxy = self._proxies.get(url.scheme) or self._proxies.get("all")
        return None if proxy is None or proxy_bypass(url.host) else proxy

    async def _send_pinned(self, request: httpx.Request, allowed: Reach) -> httpx.Response:
        """Resolve the name once, judge each of its addresses, and connect to the first that accepts."""
        host = request.url.host
        addresses = await self._resolve(host, request.url.port or (443 if request.url.scheme == "https" else 80))
        for address in addresses:
            check_target(host, address, allowed=allowed)
        extensions = {**request.extensions, "sni_hostname": host}
        for number, address in enumerate(addresses, 1):
            url = request.url.copy_with(host=address)
            # The header Host was set from the name.
            pinned = httpx.Request(request.method, url, headers=request.headers, extensions=extensions)
            try:
                return await self._pinned.handle_async_request(pinned)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if number == len(addresses):
                    raise
        raise httpx.ConnectError(f"{host} has no address")

    async def _resolve(self, host: str, port: int) -> list[str]:
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:  # a TimeoutError is an OSError
            raise httpx.ConnectError(str(error) or "its name is not resolved in time") from error
        return list(dict.fromkeys(str(address[0]) for *_, address in found))
