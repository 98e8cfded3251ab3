"""The kernel's table of TCP sockets. Pure."""

from collections.abc import Iterator

_LISTEN = "0A"


def listening_inodes(table: str, port: int) -> Iterator[int]:
    """Inodes of the sockets that listen on a port, from the text of /proc/net/tcp or tcp6."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
            yield int(fields[9])
