"""All services of one cluster: started in the order of their needs, stopped in reverse."""

import asyncio
from collections.abc import Callable, Iterable

from cli.cluster.service import Service, ServiceSpec
from cli.core.start_order import plan_start_waves


class Supervisor:
    """Sole owner of the services. `say` gets lines for people, `changed` is called after each change of a service."""

    def __init__(
        self, specs: Iterable[ServiceSpec], *, say: Callable[[str], None], changed: Callable[["Supervisor"], None]
    ) -> None:
        """Nothing is started yet."""
        self.services = {spec.name: Service(spec, say=say, changed=lambda: changed(self)) for spec in specs}
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
        """The children that somebody waits for."""
        return frozenset(service.child.pid for service in self.services.values() if service.child is not None)
