"""Facts about a model and its layout before any weight is read: header, devices, sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import llama_cpp.llama_cpp as llama

from common.errors import BadModelFile
from common.spec.layout import FlashAttention, Layout
from runner.core.layout.cache_sizes import SEPARATE_GRAPH_TOKENS, ModelNumbers, caches_are_separate
from runner.core.layout.layer_places import LayerPlaces, place_layers
from runner.core.layout.layout import ResolvedLayout, automatic_threads, lies_on_devices, resolve_layout
from runner.core.layout.memory_layers import add_sizes
from runner.core.model.description import Value
from runner.core.model.model_files import ModelFiles
from runner.core.pooled.pooling import pooling_of
from runner.core.threads.kernels import breaks_on_amx
from runner.cores import computing_cores
from runner.engine.bindings.gguf_header import open_gguf_header
from runner.engine.devices.devices import open_layout_devices

_ADAPTER_ENDINGS = (".lora_a", ".lora_b")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelHeader:
    """A GGUF header: numbers per layer in full, bytes and ggml's type of each tensor by name."""

    metadata: Mapping[str, Value]
    tensors: Mapping[str, int]
    tensor_types: Mapping[str, str]

    @property
    def weights_bytes(self) -> int:
        """Of all tensors: what a load brings into memory."""
        return sum(self.tensors.values())

    @property
    def numbers(self) -> ModelNumbers:
        """The architecture's keys by short name."""
        return ModelNumbers(self.metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A load that can begin. `adapter_tensors` has bytes by the name of the tensor that is changed."""

    files: ModelFiles
    header: ModelHeader
    adapter_tensors: Mapping[str, int]
    resolved: ResolvedLayout
    device_pointers: dict[str, int]
    places: LayerPlaces

    @property
    def rearranges(self) -> bool:
        """Return True if the CPU may keep weights in an order of its own."""
        return not (has_amx() and breaks_on_amx(self.header.tensor_types))

    @property
    def layout(self) -> Layout:
        """The resolved one."""
        return self.resolved.layout

    @property
    def threads_max(self) -> int:
        """CPU threads that compute it without other runners; 0: devices compute everything."""
        on_devices = lies_on_devices(self.layout, block_count=self.header.numbers.block_count)
        return 0 if on_devices else self.layout.threads


def read_header(path: Path, *more: Path) -> ModelHeader:
    """Read what a file's header says; of a model that is split, the keys of the first and the tensors of all.

    Raises:
        BadModelFile: the engine could not read the file.
    """
    with open_gguf_header(path) as header:
        metadata = {**header.metadata(), **header.layer_arrays()}
        tensors = header.tensors()
    for part in more:
        with open_gguf_header(part) as header:
            tensors += header.tensors()
    return ModelHeader(
        metadata=metadata,
        tensors={tensor.name: tensor.size_bytes for tensor in tensors},
        tensor_types={tensor.name: tensor.type_name for tensor in tensors},
    )


def try_header(files: ModelFiles) -> ModelHeader | None:
    """Read the header of a model; None if it cannot be read, for which its load gives the reason."""
    try:
        return read_header(*files.weights)
    except BadModelFile:
        return None


def prepare_launch(
    files: ModelFiles,
    wanted: Layout,
    *,
    header: ModelHeader | None = None,
    rpc_endpoints: Sequence[str] = (),
    opened: dict[str, int] | None = None,
) -> Launch:
    """Open the devices, unless they are `opened`, and settle every size. The `header` is read unless it is given.

    Raises:
        BadModelFile: one of the files cannot be read.
        InvalidRequest: no engine can have this layout.
        RpcUnusable: a lent device does not answer.
    """
    header = header or read_header(*files.weights)
    numbers = header.numbers
    threads = automatic_threads(physical_cores=computing_cores(), weights_bytes=_size_of(files))
    resolved = resolve_layout(
        wanted,
        trained_context_tokens=numbers.one("context_length"),
        cpu_threads=threads,
        block_count=numbers.block_count,
    )
    resolved = _with_caches(resolved, files, header)
    return Launch(
        files=files,
        header=header,
        adapter_tensors=_adapter_tensors(files, header),
        resolved=resolved,
        places=place_layers(resolved.layout, block_count=numbers.block_count),
        device_pointers=open_layout_devices(wanted, rpc_endpoints) if opened is None else opened,
    )


def _with_caches(resolved: ResolvedLayout, files: ModelFiles, header: ModelHeader) -> ResolvedLayout:
    """Return the layout with the caches that suit the model."""
    separate = caches_are_separate(
        resolved.layout,
        architecture=str(header.metadata.get("general.architecture", "")),
        numbers=header.numbers,
        weights_bytes=_size_of(files),
        sees_images=files.projector is not None,
    )
    if not separate or pooling_of(header.metadata) is not None:  # inputs of pooled models share one context
        return resolved
    tokens = resolved.layout.ubatch_tokens or SEPARATE_GRAPH_TOKENS
    layout = replace(resolved.layout, separate_caches=True, flash_attention=FlashAttention.OFF, ubatch_tokens=tokens)
    return replace(resolved, layout=layout)


def _size_of(files: ModelFiles) -> int:
    return sum(path.stat().st_size for path in files.weights)


def _adapter_tensors(files: ModelFiles, model: ModelHeader) -> dict[str, int]:
    """Bytes of all adapters by the tensor of the model that they change."""
    sizes = []
    for adapter in files.adapters:
        for name, size in read_header(adapter.path).tensors.items():
            base = name.removesuffix(_ADAPTER_ENDINGS[0]).removesuffix(_ADAPTER_ENDINGS[1])
            if base not in model.tensors:
                raise BadModelFile(f"{adapter.path.name}: it changes {base!r}, which {files.model.name} does not have")
            sizes.append((base, size))
    return add_sizes(sizes)


def has_amx() -> bool:
    """Return True if the engine was built for AMX and this CPU has it."""
    return b"AMX_INT8 = 1" in llama.llama_print_system_info()
