"""Requests of coding agents, in the order of their arrival: seeded, with the structure of recorded sessions.

Each agent has a long system prompt with descriptions of tools, which its sessions share. A session alternates between
an answer and the result of a tool or a question, and sends all of it again each time. Some sessions begin as a branch:
an earlier turn is tried again with another continuation. Sessions interleave; one that was active is likely to be next.
"""

from dataclasses import dataclass, field
from random import Random

AGENTS, SESSIONS, TURNS = 4, 24, 5
BRANCH_SHARE = 0.25
# Parts of the longest prompt: a system prompt, and the texts that a turn adds.
_SYSTEM_SHARE, _TURN_SHARE = 0.3, 0.7 / TURNS
_WORDS = ("read", "file", "edit", "test", "build", "error", "line", "path", "return", "import", "class", "index")


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """One request: the whole conversation so far, as its prompt."""

    session: int
    prompt: str


@dataclass(slots=True)
class _Session:
    number: int
    texts: list[str] = field(default_factory=list)
    turns: int = 0


def agent_trace(seed: int, *, bytes_max: int) -> list[AgentRequest]:
    """Return the requests; no prompt is longer than so many bytes."""
    draw = Random(seed)
    systems = [_system(draw, agent, int(bytes_max * _SYSTEM_SHARE)) for agent in range(AGENTS)]
    live: list[_Session] = []
    all_sessions: list[_Session] = []
    requests: list[AgentRequest] = []
    while len(all_sessions) < SESSIONS or live:
        if len(all_sessions) < SESSIONS and (len(live) < AGENTS or draw.random() < 1 / TURNS):
            live.append(_begun(draw, len(all_sessions), systems, all_sessions))
            all_sessions.append(live[-1])
        session = live[-1 - min(int(draw.expovariate(0.7)), len(live) - 1)]
        live.remove(session)
        session.texts.append(_turn(draw, int(bytes_max * _TURN_SHARE)))
        session.turns += 1
        requests.append(AgentRequest(session.number, "".join(session.texts)[:bytes_max]))
        if session.turns < TURNS:
            live.append(session)
    return requests


def _begun(draw: Random, number: int, systems: list[str], others: list[_Session]) -> _Session:
    if others and draw.random() < BRANCH_SHARE:
        origin = draw.choice(others)
        kept = draw.randrange(1, len(origin.texts) + 1)
        return _Session(number, origin.texts[:kept], kept - 1)
    return _Session(number, [systems[draw.randrange(AGENTS)]])


def _system(draw: Random, agent: int, size: int) -> str:
    text = f"You are agent {agent}. "
    while len(text) < size:
        text += f'{{"name": "{_some(draw, 2)}", "description": "{_some(draw, 12)}", "parameters": {{}}}}\n'
    return text[:size]


def _turn(draw: Random, most: int) -> str:
    """Return the answer before, and the result of its tool or the next question."""
    kind = draw.choice(("tool", "tool", "user"))
    return f"assistant: {_some(draw, 6)} {draw.randrange(10**6)}\n{kind}: " + _some(draw, most // 8)[: most - 60] + "\n"


def _some(draw: Random, words: int) -> str:
    return " ".join(draw.choice(_WORDS) + str(draw.randrange(100)) for _ in range(words))
