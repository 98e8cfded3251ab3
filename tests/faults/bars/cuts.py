"""Cuts of links between services, each in a network namespace of its own on one bridge."""

import asyncio
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from tests.e2e.namespaces import bridge_network, machine_on, missing
from tests.faults.bars.rig import Place, Rig
from tests.ports import free_number

# The longest that a stream may stand: the stall timer, and one second.
STREAM_S_MAX = 31.0
WAYS = ("both", "there", "back")
KINDS = (("-j", "DROP"), ("-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset"))
Chosen = tuple[tuple[str, str], str, tuple[str, ...]]  # link, way, kind


def described(chosen: Chosen) -> str:
    """Name a cut in a report."""
    link, way, kind = chosen
    return f"cut {' - '.join(link)}, {way}, {kind[-1]}"


class Cut:
    """Rules of iptables, each in a namespace. Verified by the packets that they counted."""

    def __init__(self, rules: Sequence[tuple[str, tuple[str, ...]]]) -> None:
        """`rules`: a namespace each, and what follows the words that insert it; the first is its chain."""
        self._rules = rules

    @classmethod
    def of_link(cls, rig: Rig, link: tuple[str, str], way: str, kind: tuple[str, ...]) -> "Cut":
        """Cut the link between a service and all whose names begin with the second word."""
        others = {service.place for name, service in rig.services.items() if name.startswith(link[1])}
        return cls.of_places(rig.services[link[0]].place, others, way, kind)

    @classmethod
    def of_places(cls, here: Place, others: Iterable[Place], way: str, kind: tuple[str, ...]) -> "Cut":
        """Cut the links between a machine and others."""
        rules = []
        for there in others:
            ways = {"there": [(here, there)], "back": [(there, here)], "both": [(here, there), (there, here)]}
            rules += [(sender.namespace, ("OUTPUT", "-d", other.address, *kind)) for sender, other in ways[way]]
        return cls(rules)

    @classmethod
    def of_machine(cls, place: Place) -> "Cut":
        """Pull the cable of a machine: nothing is said any more, and nothing is reset."""
        cable = [("OUTPUT", "-o", "eth0", "-j", "DROP"), ("INPUT", "-i", "eth0", "-j", "DROP")]
        return cls([(place.namespace, rule) for rule in cable])

    def inject(self) -> None:
        for namespace, rule in self._rules:
            _iptables(namespace, "-I", *rule)

    def packets(self) -> int:
        """Packets that did not pass."""
        counted = 0
        for namespace, (chain, *_) in self._rules:
            lines = _iptables(namespace, "-nvxL", chain).splitlines()[2:]
            counted += sum(int(line.split()[0]) for line in lines)
        return counted

    async def last(self, cut_s: float) -> int:
        """Cut for so long; return the packets that did not pass."""
        self.inject()
        try:
            await asyncio.sleep(cut_s)
            return self.packets()
        finally:
            self.heal()

    def heal(self) -> None:
        for namespace, rule in self._rules:
            _iptables(namespace, "-D", *rule)


def _iptables(namespace: str, *words: str) -> str:
    command = ["ip", "netns", "exec", namespace, "iptables", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@contextmanager
def machine_each(services: Sequence[str]) -> Iterator[dict[str, Place]]:
    """Give each service a network namespace on one bridge."""
    with ExitStack() as stack:
        mine = free_number("network", range(1, 250))
        network = f"10.213.{mine}"
        bridge = stack.enter_context(bridge_network(f"pnbr{mine}", f"{network}.1"))
        places = {}
        for number, name in enumerate(services, start=1):
            made = stack.enter_context(machine_on(f"s{number}", bridge, number, network))
            places[name] = Place(made.address, made.namespace)
        yield places


def cannot_cut() -> str:
    """Describe why no link can be cut on this machine; empty: it can."""
    return missing() or ("" if shutil.which("iptables") else "iptables is not installed (make deps-system)")
