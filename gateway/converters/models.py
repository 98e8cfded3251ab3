"""A model's proto as a value of `gateway.core`."""

from collections.abc import Mapping

import orjson

from common.telemetry.logs import get_logger
from gateway.core.models.routes import ModelInfo
from gateway.core.models.stored_model import sampling_of_metadata, stored_messages, usable_parameters
from protos import cluster_pb2

log = get_logger()


def model_from_proto(model: cluster_pb2.Model) -> ModelInfo:
    """Translate a model file and the fields of its manifest."""
    description = model.description
    parameters = usable_parameters(_object(model.parameters_json))
    if parameters.ignored:
        log.warning("model.parameters_ignored", model=model.name, names=parameters.ignored)
    return ModelInfo(
        name=model.name,
        digest=model.digest,
        size_bytes=model.size_bytes,
        modified_at_unix_s=model.modified_at_unix_s,
        error=model.error,
        architecture=description.architecture,
        title=description.title,
        parameter_count=description.parameter_count,
        quantization=description.quantization,
        context_tokens=description.context_tokens,
        embedding_length=description.embedding_length,
        layer_count=description.layer_count,
        vocabulary_size=description.vocabulary_size,
        capabilities=tuple(description.capabilities),
        chat_template=description.chat_template,
        bos_token=description.bos_token,
        eos_token=description.eos_token,
        special_tokens=tuple(description.special_tokens),
        sampling_defaults=sampling_of_metadata(_object(description.metadata_json)),
        metadata_json=description.metadata_json or "{}",
        projector_digest=model.projector_digest,
        manifest_digest=model.manifest_digest,
        total_size_bytes=model.total_size_bytes,
        system=model.system,
        template=model.template,
        parameters=parameters.values,
        parameters_json=model.parameters_json,
        messages=stored_messages(_array(model.messages_json)),
        licenses=tuple(model.licenses),
        parser=model.parser,
        parent_model=model.parent_model,
    )


def _object(text: str) -> Mapping[str, object]:
    value = _json(text)
    return value if isinstance(value, dict) else {}


def _array(text: str) -> list[object]:
    value = _json(text)
    return value if isinstance(value, list) else []


def _json(text: str) -> object:
    """Parse a text from elsewhere; invalid JSON counts as no value."""
    try:
        return orjson.loads(text) if text else None
    except orjson.JSONDecodeError:
        return None
