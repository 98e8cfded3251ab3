"""All services of one cluster: started in the order of their needs, stopped in reverse."""

import asyncio
from collections.abc import Callable, Iterable, Mapping

from cli.cluster.service import ServiceProcess, ServiceSpec


class Supervisor:
    """Sole owner of the services. `say` gets lines for people, `changed` is called after each change of a service."""

    def __init__(
        self, specs: Iterable[ServiceSpec], *, say: Callable[[str], None], changed: Callable[["Supervisor"], None]
    ) -> None:
        """Nothing is started yet."""
        self.services = {spec.name: ServiceProcess(spec, say=say, changed=lambda: changed(self)) for spec in specs}
        self._waves = plan_start_waves({name: service.spec.needs for name, service in self.services.items()})

    async def start(self) -> None:
        """Start everything; returns when the last service is ready.

        Raises:
            ServiceDied: a service cannot start; call `stop`, the others still run.
        """
        for wave in self._waves:
            starts = [asyncio.create_task(self.services[name].start()) for name in wave]
            try:
                await asyncio.gather(*starts)
            finally:
                for task in starts:
                    task.cancel()
                await asyncio.wait(starts)

    async def stop(self, hurry: asyncio.Event) -> None:
        """Stop everything in reverse order; once `hurry` is set, what still runs is killed."""
        for wave in reversed(self._waves):
            await asyncio.gather(*(self.services[name].stop(hurry) for name in wave))

    def pids(self) -> frozenset[int]:
        """Return the pids of the children that run."""
        return frozenset(service.child.pid for service in self.services.values() if service.child is not None)


def plan_start_waves(needs: Mapping[str, frozenset[str]]) -> tuple[tuple[str, ...], ...]:
    """Group services so that everything a service needs is in an earlier wave; a wave may start at once.

    Stopping takes the waves backwards: a service goes before what it needs. Within a wave the order of `needs` is kept.
    """
    unknown = frozenset().union(*needs.values()) - needs.keys()
    assert not unknown, f"needed but not planned: {sorted(unknown)}"
    waves: list[tuple[str, ...]] = []
    started: set[str] = set()
    while len(started) < len(needs):
        wave = tuple(name for name, needed in needs.items() if name not in started and needed <= started)
        assert wave, f"services need each other: {sorted(needs.keys() - started)}"
        waves.append(wave)
        started.update(wave)
    return tuple(waves)
