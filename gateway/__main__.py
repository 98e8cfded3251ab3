"""`python -m gateway`."""

import os
import sys

# Template workers are started beside a running gRPC core, whose fork handlers would complain each time: they exist for
# children that go on using gRPC, and workers replace themselves at once. Read when grpc is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
# numpy would start a thread for every core at its import; vectors here need no algebra.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# The newer event engine of gRPC hands every message of a channel through one thread more, which takes a third more
# processor time for each token. A gRPC that does not know the word any more says so once and goes on.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client")

import common.telemetry.quick_start  # noqa: F401
from common.service import run_service
from gateway.app import serve
from gateway.settings import GatewaySettings

sys.exit(run_service("gateway", GatewaySettings, serve))
