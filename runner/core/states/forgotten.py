"""Orders to forget a tenant: what was saved before one is refused, also when a copy of it comes back. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ORDERS_MAX = 4096


@dataclass(frozen=True, slots=True)
class _Order:
    epoch: int
    at_s: float  # Unix time


class ForgetOrders:
    """The newest order of each tenant. With more than ORDERS_MAX, the oldest becomes one for every tenant."""

    def __init__(self) -> None:
        self.epoch = 0
        self._floor = _Order(0, 0.0)
        self._orders: dict[str, _Order] = {}

    def add(self, salt: str, now_s: float) -> int:
        """Enter an order; return its number, which only grows."""
        self.epoch += 1
        self._orders.pop(salt, None)
        self._orders[salt] = _Order(self.epoch, now_s)
        if len(self._orders) > ORDERS_MAX:
            self._floor = self._orders.pop(next(iter(self._orders)))
        return self.epoch

    def covers(self, salt: str, saved_at_s: float) -> bool:
        """Return True for a state that was saved before an order."""
        return saved_at_s <= max(self._floor.at_s, self._orders.get(salt, self._floor).at_s)

    def is_newer(self, salt: str, epoch: int) -> bool:
        """Return True if there is an order that a runner had not obeyed when it copied a state."""
        return max(self._floor.epoch, self._orders.get(salt, self._floor).epoch) > epoch

    def since(self, at_s: float) -> dict[str, int]:
        """Return the numbers of the orders since a time, by tenant."""
        return {salt: order.epoch for salt, order in self._orders.items() if order.at_s >= at_s}

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        orders = {salt: [order.epoch, order.at_s] for salt, order in self._orders.items()}
        return {"epoch": self.epoch, "floor": [self._floor.epoch, self._floor.at_s], "orders": orders}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "ForgetOrders":
        """Read what `to_json` gave.

        Raises:
            ValueError, KeyError, TypeError: it is something else.
        """
        read = cls()
        read.epoch = int(fields["epoch"])
        read._floor = _Order(int(fields["floor"][0]), float(fields["floor"][1]))
        read._orders = {str(salt): _Order(int(one[0]), float(one[1])) for salt, one in fields["orders"].items()}
        return read
