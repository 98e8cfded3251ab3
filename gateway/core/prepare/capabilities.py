"""Refuse what a model cannot do, before it costs anything."""

from common.errors import BadModelFile, UnsupportedCapability
from gateway.core.models.routes import ModelInfo
from gateway.core.request.answers import AnswerRequest, Chat, Dialect, RawPrompt, Think, images_of
from gateway.core.request.conversation import check_conversation
from gateway.core.request.images import check_images

_COMPLETION = "completion"
THINKING = "thinking"
TOOLS = "tools"
VISION = "vision"
INSERT = "insert"


def check_usable(model: ModelInfo) -> None:
    """Refuse a broken file by name, so that the client learns the reason.

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
    # A model without any capability was not inspected for them: the runner decides.
    if model.capabilities and _COMPLETION not in model.capabilities:
        raise _lacks(request.model, "chat" if isinstance(request.prompt, Chat) else "generate")
    if isinstance(request.prompt, Chat) and request.prompt.tools and TOOLS not in model.capabilities:
        raise _lacks(request.model, TOOLS, param="tools")
    # Anthropic's coding agents ask every model to think; there it is optional.
    is_optional = request.dialect is Dialect.ANTHROPIC
    if not is_optional and request.think not in (None, Think.OFF) and THINKING not in model.capabilities:
        raise _lacks(request.model, THINKING, param="think")
    if isinstance(request.prompt, RawPrompt) and request.prompt.suffix and INSERT not in model.capabilities:
        raise _lacks(request.model, INSERT, param="suffix")
    images = images_of(request.prompt)
    if images and model.capabilities and VISION not in model.capabilities:
        raise _lacks(request.model, VISION, param="images")
    check_images(len(images), architecture=model.architecture)


def _lacks(name: str, capability: str, *, param: str | None = None) -> UnsupportedCapability:
    return UnsupportedCapability(f'"{name}" does not support {capability}', param=param or "model")
