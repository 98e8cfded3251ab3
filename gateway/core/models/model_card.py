"""Everything that is known of a model, as lists and POST /api/show say it. Pure."""

from collections.abc import Iterable, Iterator, Mapping

import orjson

from common.model_names import DEFAULT_TAG
from common.modelfile import Modelfile, modelfile_text
from gateway.core.models.routes import ModelInfo, RouteInfo
from gateway.core.request.answers import Message
from gateway.core.request.model_names import parse_model_name

_COUNT_UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))
_ARRAY_SHOWN_MAX = 5
_NAME_WIDTH = 30


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


def own_parameters(model: ModelInfo) -> dict[str, object]:
    """Return the option values of a model as they are: the GGUF's, and over them the manifest's, unusable ones too."""
    written = orjson.loads(model.parameters_json) if model.parameters_json else {}
    return {**model.sampling_defaults, **(written if isinstance(written, dict) else {})}


def parameters_text(parameters: Mapping[str, object]) -> str:
    """Write one line for each value; texts in quotes."""
    return "\n".join(f"{name:{_NAME_WIDTH}} {_quoted(value)}" for name, value in _single_values(parameters))


def modelfile_of(
    model: ModelInfo, *, template: str, system: str, parameters: Mapping[str, object], messages: Iterable[Message]
) -> str:
    """Write a Modelfile that makes the same model again."""
    text = modelfile_text(
        Modelfile(
            sources=(model.name,),
            template=template or None,
            system=system or None,
            parameters=tuple((name, _bare(value)) for name, value in _single_values(parameters)),
            messages=tuple((message.role, message.content) for message in messages),
            licenses=model.licenses,
            parser=model.parser or None,
        )
    )
    return f"# To make a model based on this one, change what follows and run: puna create NAME -f FILE\n\n{text}"


def model_info(metadata: Mapping[str, object], *, verbose: bool) -> dict[str, object]:
    """Return the keys of a GGUF. Long arrays are left out unless `verbose`; no value is null."""
    return dict(_shortened(metadata.items(), verbose=verbose))


def tensor_rows(tensors: Iterable[object]) -> list[dict[str, object]]:
    """Return the tensors of a header: name, type and lengths of each."""
    return [
        {"name": row[0], "type": row[1], "shape": row[2]} for row in tensors if isinstance(row, list) and len(row) == 3
    ]


def measured_reports(route: RouteInfo) -> list[dict[str, object]]:
    """List the memory that runners counted for the model, by context and slots; smallest context first."""
    reports: dict[tuple[int, int, str], dict[str, object]] = {}
    for replica in route.replicas:
        if not (replica.devices or replica.host_bytes):
            continue
        reports[replica.context_tokens, replica.slots_total, replica.placement_id] = {
            "context_length": replica.context_tokens,
            "slots": replica.slots_total,
            "placement": replica.placement_id,
            "node": replica.node_id,
            "devices": [
                {"id": device.device_id, "name": device.name, "layers": device.layer_count, "bytes": device.size_bytes}
                for device in replica.devices
            ],
            "host_bytes": replica.host_bytes,
        }
    return [reports[key] for key in sorted(reports)]


def _single_values(parameters: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in sorted(parameters.items()):
        if isinstance(value, list | tuple):
            yield from ((name, item) for item in value)
        else:
            yield name, value


def _quoted(value: object) -> str:
    return orjson.dumps(value).decode() if isinstance(value, str | bool) else _bare(value)


def _bare(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str() | int() | float():
            return str(value)
        case _:
            return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()


def _shortened(items: Iterable[tuple[str, object]], *, verbose: bool) -> Iterable[tuple[str, object]]:
    for key, value in items:
        too_long = isinstance(value, list) and len(value) > _ARRAY_SHOWN_MAX and not verbose
        yield key, [] if too_long or value is None else value
