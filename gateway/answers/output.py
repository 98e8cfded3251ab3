"""Between the runner's text and what clients see: reasoning and tool calls separated from content."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from common.gbnf import literal
from common.ids import random_id
from gateway.core.output_parsers.call_grammar import call_grammar, functions_of
from gateway.core.output_parsers.events import CallArguments, CallBegan, Content, Event, Reasoning
from gateway.core.output_parsers.families import Readers
from gateway.core.output_parsers.parser import EventParser
from gateway.core.output_parsers.syntax import CallFamily, OutputSyntax, syntax_of, syntax_of_parser
from gateway.core.request.answer_format import AnswerFormat
from gateway.core.request.answers import AnswerRequest, CallDelta, Chat, Delta, GeneratedToken, Think
from gateway.core.request.constraint import Constraint, FreeText

CALL_ID_LENGTH = 24


class PlainText:
    """Parser for prompts without a template, and models without markers: everything is content."""

    called = False
    reasoning_tokens = 0

    def feed(self, delta: Delta) -> list[Delta]:
        """Return the piece as it is."""
        return [delta]

    def finish(self) -> list[Delta]:
        """Return nothing: no text is held."""
        return []


@dataclass(slots=True, kw_only=True)
class ParsedText:
    """Parser for models that write reasoning or calls between markers.

    Incremental: the pieces of one answer go in, in order and in any split; deltas come out. No text is ever lost.
    """

    parser: EventParser
    calls_max: int | None = None  # None: any number; further ones are dropped
    reasoning_tokens: int = 0
    _calls: int = 0
    _tokens: list[GeneratedToken] = field(default_factory=list)

    @property
    def called(self) -> bool:
        """Return True if the answer has a tool call so far."""
        return self._calls > 0

    def feed(self, delta: Delta) -> list[Delta]:
        """Return the deltas that are certain now."""
        self._tokens += delta.tokens
        return self._with_tokens([self._delta(event) for event in self.parser.feed(delta.content)])

    def finish(self) -> list[Delta]:
        """Return the held text at the end of the answer."""
        deltas = self._with_tokens([self._delta(event) for event in self.parser.finish()])
        if self._tokens:  # of markers at the very end
            deltas.append(Delta(tokens=tuple(self._tokens)))
            self._tokens = []
        return deltas

    def _with_tokens(self, deltas: list[Delta | None]) -> list[Delta]:
        """Attach tokens to the text that they became; tokens of markers to the delta behind them."""
        said = [delta for delta in deltas if delta is not None]
        if not said:
            return []
        kept = _tokens_of_tail(self._tokens, len(self.parser.held.encode()))
        released = self._tokens[: len(self._tokens) - kept]
        self._tokens = self._tokens[len(released) :]
        said[-1] = replace(said[-1], tokens=tuple(released))
        if reasoning := "".join(delta.reasoning for delta in said):  # content or a call may have come with it
            self.reasoning_tokens += _tokens_through(released, reasoning.encode())
        return said

    def _delta(self, event: Event) -> Delta | None:
        match event:
            case Content(text):
                return Delta(content=text)
            case Reasoning(text):
                return Delta(reasoning=text)
            case CallBegan(name):
                self._calls += 1
                call = CallDelta(index=self._calls - 1, id=random_id("call_", CALL_ID_LENGTH), name=name)
            case CallArguments(fragment):
                call = CallDelta(index=self._calls - 1, arguments=fragment)
        is_surplus = self.calls_max is not None and self._calls > self.calls_max
        return None if is_surplus else Delta(tool_calls=(call,))


OutputParser = PlainText | ParsedText


def _tokens_of_tail(tokens: list[GeneratedToken], tail_bytes: int) -> int:
    """Return the number of last tokens that the last bytes of the text consist of."""
    count = 0
    while tail_bytes > 0 and count < len(tokens):
        count += 1
        tail_bytes -= len(tokens[-count].piece)
    return count


def _tokens_through(tokens: list[GeneratedToken], text: bytes) -> int:
    """Return the number of first tokens up to the end of a text that they contain; all, if they do not."""
    begin = b"".join(token.piece for token in tokens).find(text)
    if begin < 0:
        return len(tokens)
    count, left = 0, begin + len(text)
    while left > 0:
        left -= len(tokens[count].piece)
        count += 1
    return count


# End of a call by family: a stop string if only one call is wanted.
_ENDS_OF_CALLS = {
    CallFamily.HERMES: "</tool_call>",
    CallFamily.DEEPSEEK: "<｜tool▁call▁end｜>",
    CallFamily.HARMONY: "<|call|>",
    CallFamily.KIMI: "<|tool_call_end|>",
}


# Where a harmony model's reasoning begins and ends, and what stands before an answer that is no call.
_HARMONY_REASONING = FreeText(opening="<|channel|>analysis", closing="<|end|><|start|>assistant")
_HARMONY_ANSWER = "<|channel|>final<|message|>"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPlan:
    """Plan for reading the answer to one request, and its constraint."""

    syntax: OutputSyntax = field(default_factory=OutputSyntax)
    chat: Chat | None = None
    format: AnswerFormat | None = None
    is_data: bool = False  # all but reasoning is content
    reasons: bool = False  # the model may reason although the prompt has not begun to

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that the runner must not hide although they may be special tokens."""
        return self.syntax.markers if self.chat is not None else ()

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings that end the answer, beside the client's."""
        if self.chat is None or self.is_data or not self.chat.tools or self.chat.parallel_calls:
            return ()
        end = _ENDS_OF_CALLS.get(self.syntax.family)
        return () if end is None else (end,)

    @property
    def wanted(self) -> AnswerFormat | None:
        """Return the format of the answer in the client's words."""
        return AnswerFormat(field="tools") if self.chat is not None and self.chat.forced_tools else self.format

    def constraint(self, prompt_end: str) -> Constraint | None:
        """Return the runner's constraint for an answer whose prompt ends like this."""
        if self.chat is not None and self.chat.forced_tools:
            functions = functions_of(self.chat.tools)
            forced = [functions[name] for name in self.chat.forced_tools]
            found = call_grammar(self.syntax, forced, several=self.chat.parallel_calls)
        elif self.format is None:
            return None
        elif self.is_data and self.syntax.family is CallFamily.HARMONY:
            grammar = f"root ::= {literal(_HARMONY_ANSWER)} answer\n"
            found = Constraint(grammar=grammar, schemas={"answer": self.format.json_schema})
        else:
            found = Constraint(json_schema=self.format.json_schema, grammar=self.format.grammar)
        return replace(found, free_text=self._free_text(prompt_end))

    def possible_constraints(self) -> Iterator[Constraint]:
        """Yield the constraints of all prompts: of one that ends within reasoning, and of one that does not."""
        for prompt_end in ("", self.syntax.reasoning[0]) if self.syntax.reasoning else ("",):
            if (constraint := self.constraint(prompt_end)) is not None:
                yield constraint

    def reasoning(self, prompt_end: str) -> FreeText | None:
        """Return the bounds of reasoning for an answer whose prompt ends like this; None: there is none to bound."""
        if self.chat is None:
            return None
        if self.syntax.family is CallFamily.HARMONY:
            return _HARMONY_REASONING if self.reasons else None
        if self.syntax.reasoning is None:
            return None
        opening, closing = self.syntax.reasoning
        return FreeText(opening="" if self._in_reasoning(prompt_end) else opening, closing=closing)

    def _free_text(self, prompt_end: str) -> FreeText | None:
        if self.chat is None:
            return None
        if self.syntax.family is CallFamily.HARMONY and not (self.is_data or self.chat.forced_tools):
            return None  # its answers under a client's own grammar have no channels
        found = self.reasoning(prompt_end)
        return found if self.reasons or (found is not None and not found.opening) else None

    def _in_reasoning(self, prompt_end: str) -> bool:
        reasoning = self.syntax.reasoning
        return reasoning is not None and prompt_end.rstrip().endswith(reasoning[0])

    def parser(self, prompt_end: str) -> OutputParser:
        """Return the parser of an answer whose prompt ends so."""
        if self.chat is None or (self.syntax.family is CallFamily.NONE and self.syntax.reasoning is None):
            return PlainText()
        functions = functions_of(self.chat.tools)
        readers = Readers(
            syntax=self.syntax,
            tool_names=frozenset(functions),
            types={name: _types(function) for name, function in functions.items()},
            is_data=self.is_data,
        )
        parser = EventParser(readers, in_reasoning=self._in_reasoning(prompt_end))
        return ParsedText(parser=parser, calls_max=None if self.chat.parallel_calls else 1)


def plan_output(template: str, request: AnswerRequest, *, parser: str = "") -> OutputPlan:
    """Plan the reading of an answer. The output parser comes from the manifest, else from the prompt's template."""
    chat = request.prompt
    if not isinstance(chat, Chat):
        return OutputPlan(format=request.format)
    named = syntax_of_parser(parser) if parser and not chat.template else None
    syntax = named or syntax_of(chat.template or template, has_tools=bool(chat.tools))
    if request.is_json and syntax.family is not CallFamily.HARMONY:
        syntax = OutputSyntax(reasoning=syntax.reasoning)
    return OutputPlan(
        syntax=syntax,
        chat=chat,
        format=request.format,
        is_data=request.is_json,
        reasons=request.think is not Think.OFF,
    )


def _types(function: Mapping[str, object]) -> dict[str, str]:
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    if not isinstance(properties, Mapping):
        return {}
    return {
        str(key): declared["type"]
        for key, declared in properties.items()
        if isinstance(declared, Mapping) and isinstance(declared.get("type"), str)
    }
