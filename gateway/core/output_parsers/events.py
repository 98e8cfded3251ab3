"""Events of a parser, in the order of the text."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text that the model wrote to itself."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegan:
    """A tool call whose name is known. Calls are numbered from 0 by the order of these."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next raw characters of the newest call's arguments; together they are meant to be a JSON object."""

    fragment: str


Event = Content | Reasoning | CallBegan | CallArguments
