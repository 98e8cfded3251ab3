"""One loaded model as a gRPC server."""
