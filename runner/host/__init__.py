"""The process of a node: starts, watches, adopts and stops runners; never loads llama.cpp itself."""

import os

# The host starts children, which call exec at once; gRPC's handlers for fork would only delay that and fill the log.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
