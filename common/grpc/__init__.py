"""gRPC as every process speaks it: clients, servers, errors."""
