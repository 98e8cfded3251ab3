"""Hears the kernel's messages about hardware, on the event loop."""

import asyncio
import errno
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from common.telemetry.logs import get_logger
from runner.core.devices.card_changes import concerns_cards, parse_uevent

log = get_logger()

_NETLINK_KOBJECT_UEVENT = 15
_KERNEL_GROUP = 1
MESSAGE_BYTES_MAX = 16 * 1024  # the kernel's own limit is 2 KiB
# Of one turn of the loop: a machine that starts up has thousands of messages.
MESSAGES_MAX = 256

OpenSocket = Callable[[], socket.socket]


def open_uevents() -> socket.socket:
    """Open the socket of the kernel's messages.

    Raises:
        OSError: this machine has none, or this process may not hear them.
    """
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_KOBJECT_UEVENT)
    try:
        opened.bind((0, _KERNEL_GROUP))
    except OSError:
        opened.close()
        raise
    return opened


@contextmanager
def hearing(heard: Callable[[], None], *, open_socket: OpenSocket = open_uevents) -> Iterator[None]:
    """Call `heard` whenever a card may have come or gone. Where messages cannot be had, say so once and go on."""
    try:
        source = open_socket()
    except (OSError, AttributeError) as error:  # no such family on other systems than Linux
        log.info("uevents.none", text=str(error))
        yield
        return
    source.setblocking(False)
    loop = asyncio.get_running_loop()

    def read() -> None:
        for _ in range(MESSAGES_MAX):
            try:
                message, sender = source.recvfrom(MESSAGE_BYTES_MAX)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.ENOBUFS:  # more than were read in time: one of them may have been ours
                    heard()
                    continue
                log.warning("uevents.broken", text=str(error))
                loop.remove_reader(source)
                return
            if not message:  # it was closed at the other end
                loop.remove_reader(source)
                return
            if _is_kernels(sender):
                event = parse_uevent(message)
                if event is not None and concerns_cards(event):
                    log.debug("uevents.card", action=event.action, path=event.path)
                    heard()

    loop.add_reader(source, read)
    try:
        yield
    finally:
        loop.remove_reader(source)
        source.close()


def _is_kernels(sender: object) -> bool:
    """Other processes may send to the same group; the kernel's port is 0."""
    return not isinstance(sender, tuple) or sender[0] == 0
