"""The share of an agent's prompts that the cluster did not evaluate again, from the answers themselves."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tools.clients.recorder import Exchange
from tools.clients.scripted_model import BUCKET_CELLS

# Of the prompt of the turn before: what is not kept is the generation prompt.
KEPT_SHARE_MIN = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one request, as its answer counts them."""

    prompt: int
    cached: int
    answer: int

    @property
    def conversation(self) -> int:
        """Return the tokens of the prompt without what the scripted model is dictated, which other models lack."""
        return self.prompt - math.ceil(self.answer / BUCKET_CELLS) * BUCKET_CELLS


class PrefixLost(AssertionError):
    """A turn evaluated tokens again that the turn before had evaluated."""


def check_prefix_kept(exchanges: Sequence[Exchange], *, turns_min: int) -> float:
    """Return the smallest cached share over the turns of a conversation: the first request that has tools begins it.

    Requests with other tools, or none, are asides: titles, summaries, agents of agents.

    Raises:
        PrefixLost: the text names the first two turns that differ too early.
    """
    tools = next((one.body["tools"] for one in exchanges if one.body.get("tools")), None)
    turns = [usage for one in exchanges if one.body.get("tools") == tools and (usage := usage_of(one))]
    if len(turns) < turns_min:
        raise PrefixLost(f"only {len(turns)} turns have the same tools and say how many tokens they took")
    shares = [after.cached / before.conversation for before, after in pairwise(turns)]
    lowest = min(shares)
    if lowest < KEPT_SHARE_MIN:
        turn = shares.index(lowest) + 2
        raise PrefixLost(f"request {turn} found {lowest:.1%} of request {turn - 1}'s prompt: {turns}")
    return lowest


def usage_of(exchange: Exchange) -> Usage | None:
    """Return the tokens of a request; None where the answer does not say."""
    found: dict[str, Any] = {}
    for event in _events(exchange.answered):
        holder = event.get("message") or event.get("response") or event
        found |= {name: value for name, value in (holder.get("usage") or {}).items() if value is not None}
    if "prompt_tokens" in found:
        cached = (found.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        return Usage(prompt=found["prompt_tokens"], cached=cached, answer=found["completion_tokens"])
    if "input_tokens_details" in found:
        cached = found["input_tokens_details"].get("cached_tokens", 0)
        return Usage(prompt=found["input_tokens"], cached=cached, answer=found["output_tokens"])
    if "input_tokens" in found:  # Anthropic counts what was cached beside it
        cached = found.get("cache_read_input_tokens", 0)
        prompt = found["input_tokens"] + cached + found.get("cache_creation_input_tokens", 0)
        return Usage(prompt=prompt, cached=cached, answer=found["output_tokens"])
    return None


def _events(answered: bytes) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of an answer, of a stream or a whole one."""
    for line in answered.decode(errors="replace").splitlines():
        text = line.removeprefix("data:").strip()
        if text.startswith("{"):
            yield json.loads(text)
