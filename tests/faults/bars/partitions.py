"""Bar 9: each link between two services is cut, both ways and one way, with silence and with RST, for 30 s.

Each service is in a network namespace of its own on one bridge; a cut is a rule of iptables with a counter.
"""

import asyncio
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from itertools import product
from pathlib import Path

from tests.e2e.namespaces import bridge_network, machine_on, missing
from tests.faults.bars.bar import Bar, Figure, Round, answered, at_most
from tests.faults.bars.open_loop import OpenLoop, total
from tests.faults.bars.rig import Place, Rig, make_key, running_rig
from tests.ports import free_number

PER_SECOND = 4.0
FAKE = {"step_s": 0.02}
CUT_S = 30.0
SAMPLE_CUT_S = 10.0
HEALED_S_MAX = 5.0
# The longest that a stream may stand: the stall timer, and one second.
STREAM_S_MAX = 31.0
LINKS = (
    ("gateway-0", "host-a"),
    ("gateway-0", "scheduler-0"),
    ("gateway-0", "redis"),
    ("scheduler-0", "redis"),
    ("scheduler-0", "host-a"),
    ("scheduler-0", "discovery"),
    ("host-a", "discovery"),
)
WAYS = ("both", "there", "back")
KINDS = (("-j", "DROP"), ("-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset"))
CUTS = [(link, way, kind) for kind, way, link in product(KINDS, WAYS, LINKS)]
SERVICES = ("redis", "discovery", "scheduler-0", "gateway-0", "host-a", "host-b")


class Cut:
    """Rules of iptables, each in a namespace. Verified by the packets that they counted."""

    def __init__(self, rules: Sequence[tuple[str, tuple[str, ...]]]) -> None:
        """`rules`: a namespace each, and what follows the words that insert it; the first is its chain."""
        self._rules = rules

    @classmethod
    def of_link(cls, rig: Rig, link: tuple[str, str], way: str, kind: tuple[str, ...]) -> "Cut":
        """Cut the link between two services."""
        here, there = (rig.services[name].place for name in link)
        ways = {"there": [(here, there)], "back": [(there, here)], "both": [(here, there), (there, here)]}
        return cls([(sender.namespace, ("OUTPUT", "-d", other.address, *kind)) for sender, other in ways[way]])

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


async def _run(directory: Path, numbers: Sequence[int], size: int) -> AsyncIterator[Round]:
    async with AsyncExitStack() as stack:
        places = stack.enter_context(machine_each(SERVICES))
        keys = directory / "keys.json"  # with keys, the gateway talks to Redis
        key = make_key("one", keys, "admin:cluster", "models:write")
        rig = await stack.enter_async_context(
            running_rig(
                directory,
                replicas=2,
                nodes=("a", "b"),
                fake=FAKE,
                places=places.__getitem__,
                key=key,
                PUNA_API_KEYS_FILE=str(keys),
            )
        )
        await rig.control_until(load=True, deadline_s=60)
        # A sample takes cuts from all over the matrix.
        chosen = CUTS[:: max(1, len(CUTS) // size)][:size]
        async with OpenLoop(rig.gateways, PER_SECOND, key=key) as load:
            for number in numbers:
                link, way, kind = chosen[number]
                runners = await asyncio.to_thread(rig.serving)
                cut = Cut.of_link(rig, link, way, kind)
                load.take()
                cut.inject()
                try:
                    await asyncio.sleep(CUT_S if size > 1 else SAMPLE_CUT_S)
                    packets = cut.packets()
                finally:
                    cut.heal()
                begun_s = time.monotonic()
                during = load.take()
                await rig.control_until(load=False, deadline_s=90)
                healed_s = time.monotonic() - begun_s
                await rig.control_until(load=True, deadline_s=90)
                await rig.serves(2)
                yield {
                    "fault": f"cut {' - '.join(link)}, {way}, {kind[-1]}",
                    "proven": packets > 0,
                    "figures": {
                        "packets": packets,
                        "healed_s": healed_s,
                        "stopped": len(runners - await asyncio.to_thread(rig.serving)),
                        "failed": during["refused"] + sum(during["other"].values()),
                    },
                    "load": during,
                }
            await load.stop()
            yield {"load": load.take()}


def _judge(rounds: list[Round]) -> list[Figure]:
    figures = [one["figures"] for one in rounds if "figures" in one]
    load = total([one["load"] for one in rounds])
    return [
        at_most("longest answer", [ms / 1000 for ms in load["whole_ms"]], STREAM_S_MAX, "s"),
        at_most("streams that hung or ended without an end", [load["other"]["hung"] + load["other"]["truncated"]], 0),
        *answered(load, "warm model", 99.9),
        at_most("healed after the cut", [one["healed_s"] for one in figures], HEALED_S_MAX, "s"),
        at_most("runners that were stopped", [one["stopped"] for one in figures], 0),
    ]


def cannot_cut() -> str:
    """Describe why no link can be cut on this machine; empty: it can."""
    return missing() or ("" if shutil.which("iptables") else "iptables is not installed (make deps-system)")


PARTITIONS = Bar(
    number=9,
    key="partition",
    title="each link is cut for 30 s: both ways and one way, silent and with RST",
    full=len(CUTS),
    sample=1,
    unit="cuts",
    minutes=13,
    clusters=3,
    run=_run,
    judge=_judge,
    needs=cannot_cut,
)
