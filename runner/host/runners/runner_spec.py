"""Start parameters of a runner, and its command line."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from google.protobuf import json_format
from google.protobuf.message import Message

from common.network import UNIX_PREFIX, split_host_port
from protos import cluster_pb2, host_pb2
from runner.core.model.model_files import ModelFiles, adapter_argument


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSpec:
    """Start parameters of a runner: its record as of the start, and what only the start needs."""

    record: cluster_pb2.RunnerRecord  # placement, model, layout, and what it was loaded for; later changes are a copy's
    files: ModelFiles
    planned: cluster_pb2.MemoryReport
    peers: tuple[host_pb2.Peer, ...] = ()  # lenders of other nodes' devices; not part of the identity
    is_extra: bool = False  # beside replicas that serve
    environment: Mapping[str, str] = field(default_factory=dict)  # beside what every child gets; of its devices

    @property
    def placement_id(self) -> str:
        """The placement that the runner serves."""
        return self.record.placement.placement_id

    @property
    def generation(self) -> int:
        """Generation of the placement."""
        return self.record.placement.generation

    def fingerprint(self) -> bytes:
        """Return equal bytes for two starts that mean the same runner."""
        layout = without_addresses(self.record.layout)
        return self.record.model_digest.encode() + b"\0" + layout.SerializeToString(deterministic=True)

    def short_name(self) -> str:
        """Return a name that fits into the path of a Unix socket and differs for every generation."""
        return hashlib.sha256(f"{self.placement_id}/{self.generation}".encode()).hexdigest()[:12]

    def arguments(
        self, socket_path: str, *, listen: str, layout: cluster_pb2.Layout, states_path: str = ""
    ) -> list[str]:
        """Build the command line after `runner serve`.

        It listens on its own socket, or on a free port of `listen`'s host. `layout` is ours with the addresses of
        devices that RPC servers lend. On `states_path` it hands over saved states; empty: it saves none.
        """
        address = f"{UNIX_PREFIX}{socket_path}" if socket_path else listen
        metrics_host = "127.0.0.1" if socket_path else split_host_port(listen)[0]
        return [
            *file_arguments(self.files),
            *("--name", self.record.model_name, "--digest", self.record.model_digest),
            *("--placement", self.placement_id, "--generation", str(self.generation)),
            *("--layout", to_argument(layout), "--planned", to_argument(self.planned)),
            *("--listen", address, "--metrics-listen", f"{metrics_host}:0"),
            *(("--states-listen", f"{UNIX_PREFIX}{states_path}") if states_path else ()),
            *(("--extra",) if self.is_extra else ()),
        ]


def own_devices(spec: RunnerSpec) -> list[str]:
    """Return the devices of this node that a runner is planned on."""
    return [device.device_id for device in spec.record.layout.devices if not device.node_id]


def to_argument(message: Message) -> str:
    """Convert a layout or a report to JSON for a command line."""
    return json_format.MessageToJson(message, preserving_proto_field_name=True, indent=None)


def without_addresses(layout: cluster_pb2.Layout) -> cluster_pb2.Layout:
    """Return a copy without the addresses of lent devices: they differ from start to start, the devices' ids stay."""
    copy = cluster_pb2.Layout()
    copy.CopyFrom(layout)
    for device in copy.devices:
        device.ClearField("rpc_address")
        device.ClearField("rpc_device")
    return copy


def file_arguments(files: ModelFiles) -> list[str]:
    """Return the files of a model as arguments of `runner serve` and `runner measure`."""
    projector = ["--projector", str(files.projector)] if files.projector is not None else []
    adapters = [word for adapter in files.adapters for word in ("--adapter", adapter_argument(adapter))]
    more = [word for path in files.more for word in ("--more", str(path))]
    draft = [word for path in files.draft for word in ("--draft", str(path))]
    return ["--model", str(files.model), *more, *projector, *adapters, *draft]


def advertised(address: str, advertise: str) -> str:
    """Return the address that others dial: the runner's own, with the host name `advertise` if one is set."""
    if not advertise or not address or address.startswith(UNIX_PREFIX):
        return address
    return f"{advertise}:{split_host_port(address)[1]}"
