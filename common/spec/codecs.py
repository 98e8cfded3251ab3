"""Codecs of the kernel's values. Only converters import them: cores know values, never protos."""

from common.spec.bands import Band
from common.spec.codec import Codec, EnumCodec
from common.spec.layout import Adapter, DeviceLayers, FlashAttention, Layout, SplitMode
from common.spec.load_options import LoadOptions
from common.spec.pace import RunnerPace
from common.spec.sampling import Sampling
from common.spec.speculation import Speculation
from protos import cluster_pb2, runner_pb2, scheduler_pb2

LOAD_OPTIONS = Codec(LoadOptions, scheduler_pb2.LoadOptions)
SAMPLING = Codec(Sampling, runner_pb2.Sampling)
SPECULATION = Codec(Speculation, cluster_pb2.Speculation)
BAND = EnumCodec(Band, runner_pb2.Band.DESCRIPTOR, unknown=Band.NORMAL)
PACE = Codec(RunnerPace, cluster_pb2.RunnerPace)
FLASH_ATTENTION = EnumCodec(FlashAttention, cluster_pb2.FlashAttention.DESCRIPTOR, unknown=FlashAttention.AUTO)
LAYOUT = Codec(
    Layout,
    cluster_pb2.Layout,
    nested={
        "devices": Codec(DeviceLayers, cluster_pb2.DeviceLayers),
        "adapters": Codec(Adapter, cluster_pb2.Adapter),
        "flash_attention": FLASH_ATTENTION,
        "split_mode": EnumCodec(SplitMode, cluster_pb2.SplitMode.DESCRIPTOR, unknown=SplitMode.LAYER),
    },
)
