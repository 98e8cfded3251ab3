"""The one error that ends a process before it serves; apart from the others, which bring the statuses of gRPC."""


class StartupError(Exception):
    """The process cannot start. Its text is the one line that the operator reads; the exit status is 1."""
