"""What a runner is started with, and the command line that says so."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from google.protobuf import json_format

from common.network import UNIX_PREFIX, split_host_port
from protos import cluster_pb2, host_pb2
from runner.core.model.model_files import ModelFiles, adapter_argument


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSpec:
    """What a runner is started with."""

    placement_id: str
    generation: int
    model_name: str
    model_digest: str
    files: ModelFiles
    layout: cluster_pb2.Layout
    planned: cluster_pb2.MemoryReport
    peers: tuple[host_pb2.Peer, ...] = ()  # who lends the devices of other nodes; another set is the same runner
    asked: cluster_pb2.LoadAsked | None = None  # what it was loaded for; only kept and reported
    environment: Mapping[str, str] = field(default_factory=dict)  # beside what every child gets; of its devices

    def fingerprint(self) -> bytes:
        """Equal for two starts that mean the same runner."""
        return self.model_digest.encode() + b"\0" + without_addresses(self.layout).SerializeToString(deterministic=True)

    def short_name(self) -> str:
        """Short enough for the path of a Unix socket, different for every generation."""
        return hashlib.sha256(f"{self.placement_id}/{self.generation}".encode()).hexdigest()[:12]

    def arguments(self, socket_path: str, *, listen: str, layout: cluster_pb2.Layout) -> list[str]:
        """The command line after `runner serve`: it listens on its own socket, or on a free port of `listen`'s host.

        `layout` is ours with the addresses of devices that RPC servers lend.
        """
        text = json_format.MessageToJson(layout, preserving_proto_field_name=True, indent=None)
        address = f"{UNIX_PREFIX}{socket_path}" if socket_path else listen
        metrics_host = "127.0.0.1" if socket_path else split_host_port(listen)[0]
        return [
            *file_arguments(self.files),
            *("--name", self.model_name, "--digest", self.model_digest),
            *("--placement", self.placement_id, "--generation", str(self.generation), "--layout", text),
            *("--planned", json_format.MessageToJson(self.planned, preserving_proto_field_name=True, indent=None)),
            *("--listen", address, "--metrics-listen", f"{metrics_host}:0"),
        ]


def without_addresses(layout: cluster_pb2.Layout) -> cluster_pb2.Layout:
    """A copy that does not say where devices are lent: that differs from start to start, the devices' ids stay."""
    copy = cluster_pb2.Layout()
    copy.CopyFrom(layout)
    for device in copy.devices:
        device.ClearField("rpc_address")
        device.ClearField("rpc_device")
    return copy


def file_arguments(files: ModelFiles) -> list[str]:
    """The files of a model as `runner serve` and `runner measure` take them."""
    projector = ["--projector", str(files.projector)] if files.projector is not None else []
    adapters = [word for adapter in files.adapters for word in ("--adapter", adapter_argument(adapter))]
    more = [word for path in files.more for word in ("--more", str(path))]
    return ["--model", str(files.model), *more, *projector, *adapters]


def advertised(address: str, advertise: str) -> str:
    """What others dial: the runner's own address, with the host name that they know it by if one is set."""
    if not advertise or not address or address.startswith(UNIX_PREFIX):
        return address
    return f"{advertise}:{split_host_port(address)[1]}"
