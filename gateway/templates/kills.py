"""Templates that were ended for their CPU time or memory, so that none of them costs a worker again and again."""

import hashlib
from dataclasses import dataclass

KILL_REMEMBERED_S = 60.0
KILLS_MAX = 256
_EVERYONE = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kill:
    until_s: float
    frame_bytes: int  # renderings of at least this size are refused
    message: str
    sender: str


class KilledTemplates:
    """Memory of the last minute, by digest of the template. Owned by the pool.

    Short conversations prove that the template itself is at fault, and it is refused to all tenants. Long ones prove it
    only for their sender and their length: what one client sends must not close a model to the others.
    """

    def __init__(self) -> None:
        self._kills: dict[tuple[str | None, bytes], _Kill] = {}

    def add(self, template: str, *, sender: str, frame_bytes: int, is_small: bool, message: str, now_s: float) -> None:
        """Note that a rendering was ended for its own CPU time or memory."""
        self._kills = {key: kill for key, kill in self._kills.items() if kill.until_s > now_s}
        if len(self._kills) >= KILLS_MAX:
            del self._kills[next(iter(self._kills))]  # the oldest
        key = (_EVERYONE if is_small else sender, _digest(template))
        before = self._kills.pop(key, None)
        self._kills[key] = _Kill(
            until_s=now_s + KILL_REMEMBERED_S,
            frame_bytes=0 if is_small else min(frame_bytes, before.frame_bytes if before else frame_bytes),
            message=message,
            sender=sender,
        )

    def has_killed(self, sender: str, now_s: float) -> bool:
        """Return True if a rendering of this sender was ended in the last minute."""
        return any(kill.sender == sender and kill.until_s > now_s for kill in self._kills.values())

    def find(self, template: str, *, sender: str, frame_bytes: int, now_s: float) -> str:
        """Return the message of the kill that a rendering would repeat; empty: there is none."""
        if not self._kills:  # nearly always
            return ""
        digest = _digest(template)
        for key in ((_EVERYONE, digest), (sender, digest)):
            kill = self._kills.get(key)
            if kill is not None and kill.until_s > now_s and frame_bytes >= kill.frame_bytes:
                return kill.message
        return ""


def _digest(template: str) -> bytes:
    return hashlib.sha256(template.encode()).digest()
