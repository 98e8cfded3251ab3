"""Turn the tokens of one sequence into text that may be shown: whole characters, and nothing of a stop string. Pure.

Text leaves in whole tokens, so that the ids that were sent are exactly the ids that were shown: a stream can go on in
another runner from them.
"""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from common.errors import InvalidRequest
from runner.core.sequence.endings import Ending, EndReason
from runner.core.sequence.logprobs import TokenLogprobs

STOP_STRINGS_MAX = 64
STOP_STRING_BYTES_MAX = 4096
_Decoder = codecs.getincrementaldecoder("utf-8")


class TextToken(NamedTuple):
    """A generated token. `piece` is what it adds to the text: empty for control tokens that are not shown."""

    token_id: int
    piece: bytes
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """Text that may be sent now. With an ending, it is the last."""

    text: str
    tokens: tuple[TextToken, ...]
    ending: Ending | None = None


NOTHING = Release("", ())


def check_stop_strings(stops: Sequence[str]) -> tuple[bytes, ...]:
    """Return the stop strings as bytes, without empty ones.

    Raises:
        InvalidRequest: too many, or one is too long.
    """
    encoded = tuple(stop.encode() for stop in stops if stop)
    if len(encoded) > STOP_STRINGS_MAX:
        raise InvalidRequest(f"at most {STOP_STRINGS_MAX} stop strings are allowed", param="stop")
    if any(len(stop) > STOP_STRING_BYTES_MAX for stop in encoded):
        raise InvalidRequest(f"a stop string has more than {STOP_STRING_BYTES_MAX} bytes", param="stop")
    return encoded


def incomplete_tail_bytes(data: bytes) -> int:
    """Return the number of bytes at the end that begin an incomplete UTF-8 character (0 to 3)."""
    if data[-1:] < b"\x80":
        return 0
    decoder = _Decoder("replace")
    decoder.decode(data[-3:])
    tail, _ = decoder.getstate()
    # The decoder waits for the end of a surrogate, which no character begins with.
    return 0 if tail[:1] == b"\xed" and tail[1:] >= b"\xa0" else len(tail)


def find_stop(data: bytes, stops: Sequence[bytes]) -> tuple[int, bytes] | None:
    """Return the earliest match of any stop string: (offset, stop string); on a tie the first in the list."""
    best: tuple[int, bytes] | None = None
    for stop in stops:
        offset = data.find(stop)
        if offset >= 0 and (best is None or offset < best[0]):
            best = (offset, stop)
    return best


def partial_stop_bytes(data: bytes, stops: Sequence[bytes]) -> int:
    """Return the length of the longest suffix that begins a stop string."""
    held = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(data)), held, -1):
            if data.endswith(stop[:length]):
                held = length
                break
    return held


class TextStream:
    """Takes tokens, gives back what may be sent. One per sequence."""

    __slots__ = ("_pending", "_pending_bytes", "_stops", "counted", "delivered", "ended")

    def __init__(self, stops: Sequence[bytes], *, resumed: int = 0) -> None:
        """`resumed` tokens were delivered by another runner and count as generated and delivered."""
        self._stops = tuple(stops)
        self._pending: list[TextToken] = []
        self._pending_bytes = b""
        self.counted = resumed  # tokens generated, those cut and the end token included
        self.delivered = resumed  # tokens whose text was released whole
        self.ended = False

    def push(self, token: TextToken, ending: Ending | None) -> Release:
        """Add a token; `ending` is what the engine decided about it.

        In this order: count, end token, stop string, limit, hold back, send. A stop string that the last allowed token
        completes is therefore found before the limit is looked at.
        """
        assert not self.ended, "a token after the end"
        self.counted += 1
        if ending is not None and ending.reason is EndReason.END_TOKEN:
            return self._flush(ending)
        if not self._pending and ending is None and not self._stops and token.piece.isascii():
            self.delivered += 1  # nothing can hold it back
            return Release(token.piece.decode("ascii"), (token,))
        self._pending.append(token)
        self._pending_bytes += token.piece
        match = find_stop(self._pending_bytes, self._stops)
        if match is not None:
            return self._cut(*match)
        if ending is not None:
            return self._flush(ending)
        return self._release_whole_tokens()

    def finish(self, ending: Ending) -> Release:
        """End without a further token, for example because the context is full."""
        assert not self.ended, "a second end"
        return self._flush(ending)

    def _flush(self, ending: Ending) -> Release:
        """Release the held text, which turned out to be no stop string."""
        tokens, text = tuple(self._pending), self._pending_bytes.decode("utf-8", "replace")
        self._take(len(tokens))
        self.ended = True
        return Release(text, tokens, ending)

    def _cut(self, offset: int, stop: bytes) -> Release:
        """Send what comes before the stop string; a token that it begins inside is not delivered."""
        whole, _ = self._tokens_within(offset)
        text = self._pending_bytes[:offset].decode("utf-8", "replace")
        tokens = tuple(self._pending[:whole])
        self._take(whole)
        self.ended = True
        return Release(text, tokens, Ending(EndReason.STOP_STRING, stop_string=stop.decode()))

    def _release_whole_tokens(self) -> Release:
        data = self._pending_bytes
        whole, end = self._tokens_within(len(data) - partial_stop_bytes(data, self._stops))
        # A token may end inside a character: go back to one that does not.
        while whole and incomplete_tail_bytes(data[:end]):
            whole -= 1
            end -= len(self._pending[whole].piece)
        if whole == 0:
            return NOTHING
        tokens, text = tuple(self._pending[:whole]), data[:end].decode("utf-8", "replace")
        self._take(whole)
        return Release(text, tokens)

    def _tokens_within(self, limit: int) -> tuple[int, int]:
        """Count the pending tokens that end at or before byte `limit`, and return the end of the last one."""
        end = 0
        for index, token in enumerate(self._pending):
            if end + len(token.piece) > limit:
                return index, end
            end += len(token.piece)
        return len(self._pending), end

    def _take(self, count: int) -> None:
        taken = sum(len(token.piece) for token in self._pending[:count])
        del self._pending[:count]
        self._pending_bytes = self._pending_bytes[taken:]
        self.delivered += count
