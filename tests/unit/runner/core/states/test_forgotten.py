"""Orders to forget."""

from runner.core.states import forgotten
from runner.core.states.forgotten import ForgetOrders


def test_only_what_was_saved_before_the_order_is_refused() -> None:
    orders = ForgetOrders()
    epoch = orders.add("a", 100.0)
    assert orders.covers("a", 99.0)
    assert not orders.covers("a", 101.0)
    assert not orders.covers("b", 99.0)
    assert orders.is_newer("a", epoch - 1)
    assert not orders.is_newer("a", epoch)


def test_orders_survive_as_json_and_more_than_are_kept_hold_for_all() -> None:
    orders = ForgetOrders()
    for number in range(forgotten.ORDERS_MAX + 10):
        orders.add(f"tenant {number}", float(number))
    again = ForgetOrders.from_json(orders.to_json())
    assert again.covers("tenant 0", 0.0)
    assert again.covers("another", 9.0)
    assert not again.covers("another", 10.0)
    assert again.epoch == orders.epoch
