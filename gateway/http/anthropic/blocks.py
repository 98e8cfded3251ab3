"""Content blocks of Anthropic's bodies: one turn of a conversation is gathered from them."""

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import Any

from common.errors import InvalidRequest
from gateway.core.request.answers import Message, ToolCall
from gateway.core.request.images import URLS_REFUSED, PlacedImage, RequestImage

# Agents send many results and texts in one turn. More than any of them sends; the values of a body are bounded, too.
BLOCKS_MAX = 4096
# Thinking blocks must carry one. Behind the dot is the text of one that the client did not want to see.
SIGNATURE = "puna"
# Parts of earlier answers that a client sends back. Their text counts, the rest does not.
_REPLAYED = frozenset(
    {
        "advisor_tool_result",
        "bash_code_execution_tool_result",
        "code_execution_tool_result",
        "compaction",
        "fallback",
        "mcp_tool_listing",
        "mcp_tool_result",
        "mcp_tool_use",
        "redacted_thinking",
        "server_tool_use",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "web_fetch_tool_result",
        "web_search_tool_result",
    }
)
_TEXT_KEYS = ("title", "url", "text", "stdout", "stderr")


def text_block(text: str) -> dict[str, str]:
    """Return a text as a block."""
    return {"type": "text", "text": text}


def hidden_signature(thinking: str) -> str:
    """Return a signature that carries the thinking, so that the client returns it although its block is empty."""
    return f"{SIGNATURE}.{base64.b64encode(thinking.encode()).decode()}"


def our_call_id(tool_use_id: str) -> str:
    """Return the id of a call as the other dialects have it."""
    return tool_use_id.replace("toolu_", "call_", 1) if tool_use_id.startswith("toolu_") else tool_use_id


class Turn:
    """Gathers the blocks of one turn. Results of tools are messages of their own, before the text beside them."""

    def __init__(self, role: str) -> None:
        self.role = role
        self._pieces: list[str] = []
        self._length = 0
        self._images: list[PlacedImage] = []
        self._thinking: list[str] = []
        self._calls: list[ToolCall] = []
        self._results: list[Message] = []
        self._ends_in_text = False

    def add_all(self, blocks: Iterable[object], place: str) -> None:
        """Take blocks in order; `place` names the list in errors."""
        for index, block in enumerate(blocks):
            self.add(block, f"{place}.{index}")

    def add(self, block: object, place: str) -> None:
        """Take a block.

        Raises:
            InvalidRequest: it is of a kind that is not supported; the text begins with its place.
        """
        if isinstance(block, dict) and (parts := _parts_of(block, place)) is not None:
            self.add_all(parts, f"{place}.content")
            return
        match block:
            case {"type": "text", "text": str(text)}:
                self._add_text(text)
            case {"type": "image", "source": source}:
                self._images.append(PlacedImage(_image(source, place), self._length))
                self._ends_in_text = False
            case {"type": "thinking"}:
                assert isinstance(block, dict)
                self._thinking.append(_thinking_of(block))
            case {"type": "tool_use"} if self.role == "assistant":
                assert isinstance(block, dict)
                self._calls.append(_call(block, place))
            case {"type": "tool_result"} if self.role == "user":
                assert isinstance(block, dict)
                self._results.append(_result(block, place))
            case {"type": str(kind)} if kind in _REPLAYED or self.role == "assistant":
                assert isinstance(block, dict)
                self.add_all(_replayed_parts(block), f"{place}.content")
            case {"type": str(kind)}:
                text = f"{place}: content blocks of type {kind[:64]} are not supported in a {self.role} turn"
                raise InvalidRequest(text, param="messages")
            case _:
                raise InvalidRequest(f"{place}: content blocks must be objects with a type", param="messages")

    def messages(self) -> list[Message]:
        """Return the messages of the turn."""
        has_own = self._pieces or self._images or self._thinking or self._calls or not self._results
        own = Message(
            role=self.role,
            content="".join(self._pieces),
            images=tuple(self._images),
            thinking="".join(self._thinking),
            tool_calls=tuple(self._calls),
        )
        return [*self._results, *([own] if has_own else [])]

    def _add_text(self, text: str) -> None:
        if not text:
            return
        # A line end between texts, so that no two of them make a special token together.
        piece = f"\n{text}" if self._ends_in_text else text
        self._pieces.append(piece)
        self._length += len(piece)
        self._ends_in_text = True


def checked_blocks(content: object, place: str) -> list[object]:
    """Return content as blocks.

    Raises:
        InvalidRequest: neither text nor a list, or too many.
    """
    if isinstance(content, str):
        return [text_block(content)]
    if not isinstance(content, list) or len(content) > BLOCKS_MAX:
        text = f"{place}: content must be a string or at most {BLOCKS_MAX} blocks"
        raise InvalidRequest(text, param="messages")
    return content


def _call(block: Mapping[str, Any], place: str) -> ToolCall:
    match block:
        case {"id": str(id_), "name": str(name), "input": dict() | str() as arguments}:
            return ToolCall(id=our_call_id(id_), name=name, arguments=arguments)
        case {"id": str(id_), "name": str(name)} if block.get("input") is None:
            return ToolCall(id=our_call_id(id_), name=name, arguments={})
        case _:
            text = f"{place}: a block of type tool_use must have id, name and an object as input"
            raise InvalidRequest(text, param="messages")


def _result(block: Mapping[str, Any], place: str) -> Message:
    id_, content = block.get("tool_use_id"), block.get("content")
    if not isinstance(id_, str):
        raise InvalidRequest(f"{place}.tool_use_id: must be of type string", param="messages")
    inner = Turn("tool")
    inner.add_all(checked_blocks("" if content is None else content, f"{place}.content"), f"{place}.content")
    (message,) = inner.messages()
    text = f"Error: {message.content}" if block.get("is_error") is True else message.content
    return Message(role="tool", content=text, images=message.images, tool_call_id=our_call_id(id_))


def _thinking_of(block: Mapping[str, Any]) -> str:
    thinking, signature = block.get("thinking"), block.get("signature")
    if isinstance(thinking, str) and thinking:
        return thinking
    hidden = signature.removeprefix(f"{SIGNATURE}.") if isinstance(signature, str) else ""
    if not hidden or hidden == signature:
        return ""  # another server's, which only that can read
    try:
        return base64.b64decode(hidden, validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


def _parts_of(block: Mapping[str, Any], place: str) -> list[object] | None:
    """Return the texts and images that a block with parts stands for; None for any other block."""
    match block:
        case {"type": "document", "source": {"type": "text", "data": str(text)}}:
            return [_heading(block, "title", "context"), text_block(text)]
        case {"type": "document", "source": {"type": "content", "content": str() | list() as content}}:
            return [_heading(block, "title", "context"), *checked_blocks(content, f"{place}.source")]
        case {"type": "document"}:
            text = f"{place}: documents must have a source of type text or content"
            raise InvalidRequest(text, param="messages")
        case {"type": "search_result", "content": str() | list() as content}:
            return [_heading(block, "title", "source"), *checked_blocks(content, place)]
        case {"type": "tool_reference", "tool_name": str(name)}:
            return [text_block(name)]
        case _:
            return None


def _heading(block: Mapping[str, Any], *keys: str) -> dict[str, str]:
    return text_block("\n".join(str(block[key]) for key in keys if block.get(key)))


def _replayed_parts(block: Mapping[str, Any]) -> list[object]:
    """Return the texts of a block that another server made; what is for that server alone is dropped."""
    content = block.get("content")
    parts: list[object] = []
    for item in content if isinstance(content, list) else [content]:
        if isinstance(item, str):
            parts.append(text_block(item))
        elif isinstance(item, dict):
            parts.append(_heading({key: item.get(key) for key in _TEXT_KEYS}, *_TEXT_KEYS))
            match item.get("content"):
                case {"type": "document", "source": {"type": "text", "data": str(data)}}:
                    parts.append(text_block(data))
    return parts


def _image(source: object, place: str) -> RequestImage:
    match source:
        case {"type": "base64", "data": str(data)}:
            return RequestImage(data)
        case {"type": "url"}:
            raise InvalidRequest(URLS_REFUSED, param="messages")
        case _:
            raise InvalidRequest(f"{place}: images must have a base64 source", param="messages")
