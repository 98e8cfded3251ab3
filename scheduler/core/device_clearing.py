"""An operator gives an excluded device another chance."""

from scheduler.core.books.books import Books
from scheduler.core.books.effects import AnswerFailed, ClearDevice
from scheduler.core.books.events import DeviceClearAsked
from scheduler.core.values.constraints import label_means
from scheduler.core.values.faults import device_not_found, invalid_value, unavailable


def clear_device(books: Books, event: DeviceClearAsked) -> None:
    """Find the device, and send its host to test it."""
    found = [
        (node, device)
        for node in books.observed.nodes.values()
        for device in node.devices
        if label_means(event.label, node, device)
    ]
    if books.leadership is None:
        fault = unavailable(books.no_leader_why)
    elif not found:
        fault = device_not_found(event.label)
    elif len(found) > 1:
        names = ", ".join(f"{node.id}/{device.id}" for node, device in found)
        fault = invalid_value(f"several devices are called {event.label!r}: {names}")
    else:
        ((node, device),) = found
        books.emit(
            ClearDevice(
                fence=books.leadership.fence,
                leader_id=books.leadership.leader_id,
                address=node.address,
                caller_id=event.caller_id,
                node_id=node.id,
                device_id=device.id,
            )
        )
        return
    books.emit(AnswerFailed(callers=(event.caller_id,), fault=fault))
