"""Messages of Anthropic's bodies as one conversation."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from common.errors import InvalidRequest
from gateway.core.prepare.turns import with_system_first
from gateway.core.request.answers import Message
from gateway.http.anthropic.blocks import Turn, checked_blocks, our_call_id
from gateway.http.anthropic.bodies import AnthropicMessage, AnthropicTool
from gateway.http.endpoint.fields import validated

# Claude Code writes it in front of its system text for the original server, which takes it away. Its `cch` differs in
# every request, so no prefix would be found again. vLLM and SGLang take it away, llama.cpp evens it out.
_BILLING_HEADER = re.compile(r"x-anthropic-billing-header:(?:[ \t]*[\w-]+=[^;\n]*;)*[ \t]*\n?")
_UNEXPECTED_RESULT = (
    "{}: unexpected `tool_use_id` found in `tool_result` blocks: {}. "
    "Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
)


@dataclass(slots=True)
class MessagesReader:
    """Gathers messages. Neighbours of one role are one turn, as at the original."""

    messages: list[Message] = field(default_factory=list)
    added_tools: list[AnthropicTool] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    _turn: Turn | None = None
    _called: set[str] = field(default_factory=set)

    def add_system(self, value: Any) -> None:
        """Take the text that stands before all messages.

        Raises:
            InvalidRequest: neither a string nor text blocks.
        """
        match value:
            case None:
                texts = []
            case str():
                texts = [value]
            case list() if all(isinstance(block, dict) and isinstance(block.get("text"), str) for block in value):
                texts = [block["text"] for block in value]
            case _:
                raise InvalidRequest("system must be a string or text blocks", param="system")
        if texts:
            texts[0] = _BILLING_HEADER.sub("", texts[0], count=1) if texts[0].startswith("x-anthropic-") else texts[0]
        if text := "\n".join(text for text in texts if text):
            self.messages.append(Message(role="system", content=text))

    def add_all(self, messages: Sequence[AnthropicMessage]) -> None:
        """Take the messages in order.

        Raises:
            InvalidRequest: a role or a block that is not supported; the text begins with its place.
        """
        last_question = max((index for index, message in enumerate(messages) if message.role == "user"), default=-1)
        for index, message in enumerate(messages):
            place = f"messages.{index}"
            if message.role in ("user", "assistant"):
                self._add_turn(message, place)
            elif message.role == "system":
                self._end_turn()
                if message.clear_at != "next_user_message" or index > last_question:
                    self._add_later_system(message.content, place)
            else:
                text = f'{place}.role: "{message.role[:64]}" must be user, assistant or system'
                raise InvalidRequest(text, param="messages")
        self._end_turn()
        self.messages = list(with_system_first(self.messages))

    def _add_turn(self, message: AnthropicMessage, place: str) -> None:
        blocks = checked_blocks(message.content, place)
        for index, block in enumerate(blocks):
            self._check_ids(block, message.role, f"{place}.content.{index}")
        if self._turn is None or self._turn.role != message.role:
            self._end_turn()
            self._turn = Turn(message.role)
        self._turn.add_all(blocks, f"{place}.content")

    def _check_ids(self, block: object, role: str, place: str) -> None:
        match block:
            case {"type": "tool_use", "id": str(id_)} if role == "assistant":
                if our_call_id(id_) in self._called:
                    raise InvalidRequest(f"{place}: `tool_use` ids must be unique", param="messages")
                self._called.add(our_call_id(id_))
            case {"type": "tool_result", "tool_use_id": str(id_)} if our_call_id(id_) not in self._called:
                raise InvalidRequest(_UNEXPECTED_RESULT.format(place, id_[:64]), param="messages")

    def _end_turn(self) -> None:
        if self._turn is not None:
            self.messages += self._turn.messages()
        self._turn = None

    def _add_later_system(self, content: object, place: str) -> None:
        turn = Turn("system")
        for index, block in enumerate(checked_blocks("" if content is None else content, place)):
            match block:
                case {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": definition}}:
                    self.added_tools.append(validated(AnthropicTool, definition))
                case {"type": "tool_addition"}:
                    pass  # every tool is offered from the beginning: another list would change the whole prompt
                case {"type": "tool_removal"}:
                    self.ignored.append("tool_removal")
                case _:
                    turn.add(block, f"{place}.content.{index}")
        self.messages += [message for message in turn.messages() if message.content or message.images]
