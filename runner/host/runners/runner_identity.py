"""Certificate of one runner: issued by its host with the certificate of the node, and renewed while the runner lives.

No runner has the key of its node: a model file that takes a runner over can act as that runner, and as nothing else.
"""

import asyncio
import os

from common.clock import Clock
from common.errors import PunaError
from common.grpc.client import CHANNEL_OPTIONS
from common.grpc.errors import domain_errors
from common.grpc.trusted_channel import TrustedChannel
from common.telemetry.logs import get_logger
from common.trust.certificates import issue, read_facts
from common.trust.identity import IdentitySource, Material, own_identity
from common.trust.roles import parse_role, runner_peer
from protos import runner_pb2, runner_pb2_grpc

log = get_logger()

LOOK_S = 1.0
SEND_TIMEOUT_S = 5.0


def own_runner(placement_id: str) -> str:
    """Return the role of a runner of this host, as `open_channel` takes it; empty without certificates."""
    identity = own_identity()
    return "" if identity is None else runner_peer(identity.material().facts.name.node_id, placement_id)


class RunnerIdentity:
    """Nothing of it is kept: a host that adopts a runner issues a new certificate at once."""

    def __init__(self, identity: IdentitySource, placement_id: str, clock: Clock) -> None:
        """`identity`: that of the host."""
        self._identity = identity
        self._placement_id = placement_id
        self._clock = clock
        self._accepted: Material | None = None  # of the host, with which the runner's present certificate was issued
        self._is_refused = False
        self._renew_at_unix_s = 0.0

    def hand_over(self) -> int:
        """Return a file descriptor of memory with a first certificate, for the runner to inherit."""
        descriptor = os.memfd_create("identity")
        self._accepted = issuer = self._identity.material()
        os.write(descriptor, self._issue(issuer).SerializeToString())
        os.lseek(descriptor, 0, os.SEEK_SET)
        return descriptor

    async def keep(self, address: str, gone: asyncio.Event) -> None:
        """Renew it at half of its life, and when the node has another certificate. Ends once `gone` is set."""
        peer = own_runner(self._placement_id)
        async with TrustedChannel(address, peer, self, CHANNEL_OPTIONS) as channel:
            stub = runner_pb2_grpc.RunnerStub(channel)
            while not gone.is_set():
                issuer = self._identity.material()
                if issuer is not self._accepted or self._clock.wall_unix_s() >= self._renew_at_unix_s:
                    await self._renew(stub, issuer)
                await asyncio.sleep(LOOK_S)

    def material(self) -> Material:
        """Return what the host shows to the runner, which may not know the authority of the newest certificate yet."""
        return self._identity.material() if self._accepted is None or self._is_refused else self._accepted

    async def _renew(self, stub: "runner_pb2_grpc.RunnerAsyncStub", issuer: Material) -> None:
        try:
            with domain_errors():
                await stub.UseIdentity(self._issue(issuer), timeout=SEND_TIMEOUT_S)
        except PunaError as error:
            self._is_refused = not self._is_refused  # one of the two is accepted
            log.warning("runner.certificate_not_renewed", placement=self._placement_id, text=error.message)
            return
        self._accepted, self._is_refused = issuer, False
        log.info("runner.certificate_renewed", placement=self._placement_id)

    def _issue(self, issuer: Material) -> runner_pb2.RunnerIdentity:
        """Issue a certificate for one day, at most for as long as that of the node is good."""
        name = parse_role(runner_peer(issuer.facts.name.node_id, self._placement_id))
        pair = issue(issuer.pair, name, now_unix_s=self._clock.wall_unix_s())
        self._renew_at_unix_s = read_facts(pair.certificate).renew_at_unix_s
        return runner_pb2.RunnerIdentity(authorities=issuer.authorities, certificate=pair.certificate, key=pair.key)
