"""Search for the scheduler that leads: over all addresses, and for as long as a standby needs to take over."""

import asyncio

from common.errors import ModelUnavailable, NotLeading, PunaError, StaleFence, StoreUnreachable
from common.grpc.errors import UNREACHABLE
from common.telemetry.logs import get_logger

log = get_logger()

# The lease of a dead leader ends after 5 s, and a standby asks for it every second.
LEADER_WAIT_S = 8.0
_ASK_AGAIN_S = 0.5
# A leader whose fence a host refuses leads again within seconds, or another one does.
_LEADERLESS = (NotLeading, StaleFence)
ELSEWHERE = (*_LEADERLESS, StoreUnreachable, ModelUnavailable)


class LeaderSearch:
    """Asks every scheduler once, and again while one says that a leader is there or coming."""

    def __init__(self, wait_s: float) -> None:
        """Begin with the first round; none begins after `wait_s`."""
        self._until_s = asyncio.get_running_loop().time() + wait_s
        self._errors: list[PunaError] = []  # of this round

    async def go_on(self, error: PunaError, *, addresses: int) -> None:
        """Return once the next address may be asked.

        `error`: what the present one refused with, one of ELSEWHERE.

        Raises:
            ModelUnavailable: all were asked; it names no address.
        """
        self._errors.append(error)
        if len(self._errors) < addresses:
            return
        for one in self._errors:
            if _is_answer(one):
                raise one
        is_coming = any(isinstance(one, _LEADERLESS) for one in self._errors)
        if not is_coming or asyncio.get_running_loop().time() >= self._until_s:
            raise for_clients(error) from error
        self._errors.clear()
        await asyncio.sleep(_ASK_AGAIN_S)


def _is_answer(error: PunaError) -> bool:
    """Return True for the refusal of a leader, or of a standby of an older build, which looks the same."""
    return isinstance(error, ModelUnavailable) and not error.message.startswith(UNREACHABLE)


def for_clients(error: PunaError) -> PunaError:
    """Return what clients get: addresses of schedulers are the operator's business alone."""
    if _is_answer(error):
        return error
    if isinstance(error, StoreUnreachable):
        return ModelUnavailable(error.message, retry_after_s=error.retry_after_s)
    log.warning("scheduler.unavailable", text=error.message)
    text = "no scheduler leads now" if isinstance(error, _LEADERLESS) else "the scheduler cannot be reached"
    return ModelUnavailable(text, retry_after_s=5.0)
