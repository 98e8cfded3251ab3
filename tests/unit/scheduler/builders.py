"""Short ways to write nodes, devices, models and reports in tests of the scheduler's core."""

from common.spec.layout import Layout
from scheduler.core.sizes.estimate import layer_ranges
from scheduler.core.values.memory import GIB, MIB, DeviceBytes, MemoryOrigin, MemoryReport
from scheduler.core.values.view import DeviceKind, DeviceView, ModelFile, NodeView, RunnerState, RunnerView, Trust

LAYERS = 32


def gpu(
    name: str = "gpu-0", *, free: float = 24, total: float = 24, usable: bool = True, trust: Trust = Trust.MEASURED
) -> DeviceView:
    """A discrete GPU; sizes in GiB."""
    return _device(name, DeviceKind.GPU, free, total, pool=name, usable=usable, trust=trust)


def cpu(*, free: float = 64, total: float = 64, usable: bool = True, trust: Trust = Trust.MEASURED) -> DeviceView:
    """The RAM of a node; sizes in GiB."""
    return _device("cpu", DeviceKind.CPU, free, total, pool="host", usable=usable, trust=trust)


def integrated(*, free: float = 16, total: float = 16) -> DeviceView:
    """A GPU that shares the RAM; sizes in GiB."""
    return _device("igpu", DeviceKind.INTEGRATED, free, total, pool="host")


def _device(
    name: str,
    kind: DeviceKind,
    free: float,
    total: float,
    *,
    pool: str,
    usable: bool = True,
    trust: Trust = Trust.MEASURED,
) -> DeviceView:
    return DeviceView(
        id=name,
        name=name.upper(),
        kind=kind,
        backend="CUDA" if kind is DeviceKind.GPU else "CPU",
        description=f"{kind} {total}",
        pool_id=pool,
        total_bytes=int(total * GIB),
        free_bytes=int(free * GIB),
        free_source="nvml",
        free_age_s=0.0,
        trust=trust,
        usable=usable,
        state_reason="" if usable else "second pass died",
    )


def model(name: str = "m:latest", *, error: str = "", trained: int = 8192, modified_s: int = 1) -> ModelFile:
    """A model file; its digest is made of its name."""
    return ModelFile(
        name=name,
        digest=f"digest-{name.partition(':')[0]}",
        size_bytes=1 * GIB,
        modified_at_unix_s=modified_s,
        trained_context_tokens=trained,
        layer_count=LAYERS - 1,
        error=error,
    )


def node(
    name: str = "a",
    *,
    devices: tuple[DeviceView, ...] = (),
    models: tuple[ModelFile, ...] = (),
    runners: tuple[RunnerView, ...] = (),
    suspect: bool = False,
    age_s: float = 0.0,
) -> NodeView:
    """A node; with nothing said it has one GPU, its RAM and the model "m"."""
    return NodeView(
        id=name,
        address=f"{name}:1",
        engine_build="b1",
        devices=devices or (gpu(), cpu()),
        models=models or (model(),),
        runners=runners,
        suspect=suspect,
        report_age_s=age_s,
    )


def report(
    *device_gib: float, host_gib: float = 0.1, device_id: str = "gpu-0", origin: MemoryOrigin = MemoryOrigin.MEASURED
) -> MemoryReport:
    """A memory report with so many GiB of weights per device, in order."""
    return MemoryReport(
        origin=origin,
        devices=tuple(DeviceBytes(device_id=device_id, weights_bytes=int(size * GIB)) for size in device_gib),
        host=DeviceBytes(graph_bytes=int(host_gib * GIB)),
    )


def counted(layout: Layout, *, weights: int, cache: int = 0, graph: int = 0) -> MemoryReport:
    """Return the count of an engine whose layers are all of one size: the model's 31 blocks and its output."""
    parts = [_share(weights, layer) for layer in range(LAYERS)]
    cells = [_share(cache, layer) for layer in range(LAYERS)]
    devices, taken = [], set[int]()
    for device, (start, stop) in zip(layout.devices, layer_ranges(layout, LAYERS - 1), strict=True):
        mine = range(start, stop)
        taken.update(mine)
        held = tuple(parts[layer] if layer in mine else 0 for layer in range(LAYERS))
        cached = tuple(cells[layer] if layer in mine else 0 for layer in range(LAYERS))
        devices.append(
            DeviceBytes(
                device_id=device.device_id,
                node_id=device.node_id,
                weights_bytes=sum(held),
                cache_bytes=sum(cached),
                graph_bytes=graph,
                layer_weights_bytes=held,
                layer_cache_bytes=cached,
            )
        )
    left = tuple(0 if layer in taken else parts[layer] for layer in range(LAYERS))
    cached = tuple(0 if layer in taken else cells[layer] for layer in range(LAYERS))
    host = DeviceBytes(
        weights_bytes=sum(left),
        cache_bytes=sum(cached),
        graph_bytes=10 * MIB if devices else 0,
        layer_weights_bytes=left,
        layer_cache_bytes=cached,
    )
    return MemoryReport(origin=MemoryOrigin.MEASURED, devices=tuple(devices), host=host)


def _share(count: int, layer: int) -> int:
    """Of one layer; the shares of all add up."""
    return count * (layer + 1) // LAYERS - count * layer // LAYERS


def runner(
    placement_id: str = "p",
    *,
    of: ModelFile | None = None,
    layout: Layout | None = None,
    generation: int = 1,
    state: RunnerState = RunnerState.READY,
    memory: MemoryReport | None = None,
    busy: int = 0,
    idle_s: float = 0.0,
    requests: int = 1,
    keep_alive_ms: int | None = None,
    context_tokens: int = 4096,
) -> RunnerView:
    """A runner; with nothing said it is idle and ready, everything on gpu-0."""
    file = of or model()
    return RunnerView(
        placement_id=placement_id,
        generation=generation,
        incarnation=f"{placement_id}.{generation}",
        model_name=file.name,
        model_digest=file.digest,
        layout=layout or Layout(context_tokens=context_tokens, slots=8, batch_tokens=512).on("gpu-0", 32),
        address=f"unix:/run/{placement_id}",
        state=state,
        slots_total=8,
        slots_busy=busy,
        idle_ms=round(idle_s * 1000),
        keep_alive_ms=keep_alive_ms,
        requests_total=requests,
        memory=memory,
    )
