"""Between the runner's text and what clients see: the place where reasoning and tool calls are told from content."""

from typing import Protocol

from gateway.core.answers import AnswerRequest, Delta
from gateway.core.routes import ModelInfo


class OutputParser(Protocol):
    """Incremental: the pieces of one answer go in, in order and in any split; deltas come out. No text is ever lost."""

    def feed(self, delta: Delta) -> list[Delta]:
        """The deltas that are certain now."""

    def finish(self) -> list[Delta]:
        """What was held back, at the end of the answer."""


class PlainText:
    """For models without markup: everything is content."""

    def feed(self, delta: Delta) -> list[Delta]:
        """See OutputParser."""
        return [delta]

    def finish(self) -> list[Delta]:
        """See OutputParser."""
        return []


def output_parser(_model: ModelInfo, _request: AnswerRequest) -> OutputParser:
    """The parser of an answer. No family of markup is parsed so far: it reaches the client as content, unchanged."""
    return PlainText()
