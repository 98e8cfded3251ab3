"""The table of cases, and what a case has at hand.

Cases need nothing but the clients and the standard library: they also run in environments that have nothing else.
"""

import inspect
import json
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

WHOLE, STREAM = "whole", "stream"
BOTH = (WHOLE, STREAM)
QUESTION = "What is Puna?"


@dataclass(slots=True, kw_only=True)
class Talk:
    """One client in one mode, and the cluster it talks to."""

    api: Any  # the official client; its calls may be awaitable or not
    package: Any  # its module, for the exception types
    stream: bool
    url: str
    facts: dict[str, Any]  # what the demo model was taught, images, …

    def answer(self, question: str = QUESTION) -> str:
        """Return the answer that the demo model was trained to give."""
        text: str = self.facts["answers"][question]
        return text

    def taught(self, name: str) -> dict[str, Any]:
        """One of the demo model's lessons: messages, tools, content, reasoning, tool_calls."""
        lesson: dict[str, Any] = self.facts["lessons"][name]
        return lesson

    def get(self, path: str) -> Any:
        """As `post`."""
        request = urllib.request.Request(self.url + path, None, {"authorization": f"Bearer {self.facts['key']}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def post(self, path: str, body: object) -> Any:
        """Puna's own routes, which no client knows."""
        data = json.dumps(body).encode()
        headers = {"content-type": "application/json", "authorization": f"Bearer {self.facts['key']}"}
        request = urllib.request.Request(self.url + path, data, headers)  # ours
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


Run = Callable[[Talk], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One feature, or one error. `dialect` is the client that it is asked of."""

    dialect: str
    name: str
    section: str  # of the promises: which group of features it belongs to
    modes: tuple[str, ...]
    run: Run
    why_not: str = ""  # why there is no other mode
    stage: str = "open"  # which cluster: "open", "strict", "hurried" or "tight"
    not_npm: str = ""  # why the npm package cannot send it

    @property
    def id(self) -> str:
        """Unique in the table."""
        return f"{self.dialect}: {self.name}"


TABLE: dict[str, Case] = {}


def case(
    dialect: str,
    name: str,
    section: str,
    *,
    modes: tuple[str, ...] = BOTH,
    why_not: str = "",
    stage: str = "open",
    not_npm: str = "",
) -> Callable[[Run], Run]:
    """Put a function into the table."""
    assert why_not or modes == BOTH, "say why there is no other mode"

    def put(run: Run) -> Run:
        made = Case(
            dialect=dialect,
            name=name,
            section=section,
            modes=modes,
            run=run,
            why_not=why_not,
            stage=stage,
            not_npm=not_npm,
        )
        assert made.id not in TABLE, made.id
        TABLE[made.id] = made
        return run

    return put


async def value(answer: Any) -> Any:
    """Return the result of a client's call; those of asynchronous clients are awaited."""
    return await answer if inspect.isawaitable(answer) else answer


async def items(stream: Any) -> AsyncIterator[Any]:
    """The items of a stream of either kind."""
    stream = await value(stream)
    if hasattr(stream, "__aiter__"):
        async for item in stream:
            yield item
    else:
        for item in stream:
            yield item


class NotInClient(Exception):  # nothing is wrong
    """Raised for a request that a client of this release cannot send; the text has the reason."""


class NotRaised(AssertionError):
    """A request that had to fail did not."""


async def raised(call: Callable[[], Any], kind: type[BaseException]) -> Any:
    """The exception of a call, which must be of this type; streams are read to their end.

    Raises:
        NotRaised: there was none.
    """
    try:
        await read(call)
    except kind as error:
        return error
    raise NotRaised(f"no {kind.__name__}")


async def read(call: Callable[[], Any]) -> None:
    """Make a call and read what it gives to its end."""
    answer = await value(call())
    if hasattr(answer, "__aiter__") or hasattr(answer, "__next__"):
        async for _ in items(answer):
            pass
