"""GET /puna/v1/events: the state of everything, and then what changes of it, for pages that show it live."""

from dataclasses import dataclass

from gateway.core.keys.keys import Scope
from gateway.core.ui.changes import View, changes_between
from gateway.core.ui.visibility import view_for
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.streaming import SSE_HEADERS, data_event
from gateway.http.puna.overview import Overview
from gateway.keys.visits import current_visit, may_use

# Without a change for so long a comment goes out: the reader can tell a quiet cluster from a dead connection.
HEARTBEAT_S = 5.0


@dataclass(frozen=True, slots=True)
class Events:
    """One endpoint. A reader that takes nothing for 30 s is dropped (`Exchange.write`); what it missed is not kept."""

    overview: Overview

    async def stream(self, exchange: Exchange) -> None:
        """GET /puna/v1/events."""
        async with self.overview.reading():
            await exchange.begin(200, SSE_HEADERS)
            sent = self._visible(self.overview.view)
            await exchange.write(b"event: snapshot\n" + data_event(sent))
            clock = self.overview.clock
            said_s = clock.now_s()
            while self._may_go_on():
                seen = self._visible(await self.overview.next_view(HEARTBEAT_S))
                if changes := changes_between(sent, seen):
                    await exchange.write(b"event: change\n" + data_event(changes))
                elif clock.now_s() - said_s >= HEARTBEAT_S:
                    await exchange.write(b": quiet\n\n")
                else:
                    continue
                sent, said_s = seen, clock.now_s()
            await exchange.write(b"event: end\ndata: {}\n\n", more=False)

    def _may_go_on(self) -> bool:
        """Return False if this gateway stops or the key is no longer valid; a new connection gets the reason."""
        visit = current_visit()
        return not self.overview.service.draining and (visit is None or visit.is_good())

    def _visible(self, view: View) -> View:
        visit = current_visit()
        key = visit.key if visit is not None else None
        return view_for(
            view,
            may_use=may_use,
            shown=self.overview.service.inference.models.shown,
            own_key_id=key.id if key is not None else None,
            sees_all_keys=key is None or Scope.ADMIN_CLUSTER in key.scopes,
        )
