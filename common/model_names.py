"""The grammar of model names: `[host/][namespace/]model[:tag]`. Source: the names of Ollama."""

import re

DEFAULT_HOST = "registry.ollama.ai"
DEFAULT_NAMESPACE = "library"
DEFAULT_TAG = "latest"
PART_CHARACTERS_MAX = 80  # of a model or a tag

HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,349}")
NAMESPACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}")
PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}")


def split_model_name(text: str) -> tuple[str, str, str, str] | None:
    """Return host, namespace, model and tag, defaults filled in; None if the text is no model name."""
    parts = text.split("/")
    model, colon, tag = parts[-1].partition(":")
    host = parts[-3] if len(parts) == 3 else DEFAULT_HOST
    namespace = parts[-2] if len(parts) >= 2 else DEFAULT_NAMESPACE
    tag = tag if colon else DEFAULT_TAG
    valid = (
        len(parts) <= 3
        and HOST.fullmatch(host)
        and NAMESPACE.fullmatch(namespace)
        and PART.fullmatch(model)
        and PART.fullmatch(tag)
    )
    return (host, namespace, model, tag) if valid else None


def is_model_name(text: str) -> bool:
    """Return True for a text that every service takes as the name of a model."""
    return split_model_name(text) is not None
