"""`python -m common.healthcheck ADDRESS`: exit 0 if the gRPC server there says SERVING; for container health checks."""

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

TIMEOUT_S = 2.0


def main() -> int:
    """Ask once. 0 healthy, 1 not, 2 usage."""
    if len(sys.argv) != 2:
        print("usage: python -m common.healthcheck ADDRESS", file=sys.stderr)
        return 2
    with grpc.insecure_channel(sys.argv[1]) as channel:
        try:
            check = health_pb2_grpc.HealthStub(channel).Check  # type: ignore[attr-defined]  # the stub package omits it
            answer = check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            print(error, file=sys.stderr)
            return 1
    return 0 if answer.status == health_pb2.HealthCheckResponse.SERVING else 1


if __name__ == "__main__":
    sys.exit(main())
