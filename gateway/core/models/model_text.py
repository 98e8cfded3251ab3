"""Texts about models, for people to read."""

from common.model_names import DEFAULT_TAG
from gateway.core.models.routes import ModelInfo
from gateway.core.request.model_names import parse_model_name

_COUNT_UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))


def parameter_size_text(count: int) -> str:
    """Format the number of parameters as Ollama does: 8.0B, 3.2M; empty if unknown."""
    for size, unit in _COUNT_UNITS:
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return str(count) if count else ""


def model_details(model: ModelInfo) -> dict[str, object]:
    """Return the `details` object of the Ollama dialect."""
    return {
        "parent_model": model.parent_model,
        "format": "gguf",
        "family": model.architecture,
        "families": [model.architecture] if model.architecture else [],
        "parameter_size": parameter_size_text(model.parameter_count),
        "quantization_level": model.quantization,
    }


def model_id(model: ModelInfo) -> str:
    """Return the shortest name that means the model."""
    return parse_model_name(model.name).short.removesuffix(f":{DEFAULT_TAG}")
