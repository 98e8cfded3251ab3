"""Refuse what a model cannot do, before it costs anything."""

from common.errors import BadModelFile, UnsupportedCapability
from gateway.core.asked.answers import AnswerRequest, Chat, Dialect, RawPrompt, Think, images_of
from gateway.core.asked.conversation import check_conversation
from gateway.core.asked.images import check_images
from gateway.core.models.routes import ModelInfo

_COMPLETION = "completion"
THINKING = "thinking"
TOOLS = "tools"
VISION = "vision"
INSERT = "insert"


def check_usable(model: ModelInfo) -> None:
    """A broken file is known by name, so that the client learns why.

    Raises:
        BadModelFile: always the same until the file is replaced; do not retry.
    """
    if model.error:
        raise BadModelFile(f"{model.name}: {model.error}")


def check_capabilities(request: AnswerRequest, model: ModelInfo) -> None:
    """Compare a request with what its model can do.

    Raises:
        UnsupportedCapability, InvalidRequest: tell the client.
    """
    if isinstance(request.prompt, Chat):
        check_conversation(request.prompt)
    # A model without any capability was not inspected for them: let the runner judge.
    if model.capabilities and _COMPLETION not in model.capabilities:
        raise _lacks(request.model, "chat" if isinstance(request.prompt, Chat) else "generate")
    if isinstance(request.prompt, Chat) and request.prompt.tools and TOOLS not in model.capabilities:
        raise _lacks(request.model, TOOLS, param="tools")
    # Anthropic's coding agents ask every model to think; there it is a wish.
    is_wish = request.dialect is Dialect.ANTHROPIC
    if not is_wish and request.think not in (None, Think.OFF) and THINKING not in model.capabilities:
        raise _lacks(request.model, THINKING, param="think")
    if isinstance(request.prompt, RawPrompt) and request.prompt.suffix and INSERT not in model.capabilities:
        raise _lacks(request.model, INSERT, param="suffix")
    images = images_of(request.prompt)
    if images and model.capabilities and VISION not in model.capabilities:
        raise _lacks(request.model, VISION, param="images")
    check_images(len(images), architecture=model.architecture)


def _lacks(name: str, capability: str, *, param: str | None = None) -> UnsupportedCapability:
    return UnsupportedCapability(f'"{name}" does not support {capability}', param=param or "model")
