"""Settings of operators for devices."""

import pytest

from runner.core.devices.device_settings import (
    Amount,
    RpcPool,
    RpcServer,
    amount_for,
    parse_amount,
    parse_amounts,
    parse_device_ids,
    parse_rpc_servers,
)

GIB = 1024**3


@pytest.mark.parametrize(
    ("text", "count_bytes"),
    [
        ("512MiB", GIB // 2),
        ("2G", 2 * GIB),
        ("1.5 gib", 3 * GIB // 2),
        ("0", 0),
        ("1073741824", GIB),
        ("64KiB", 65536),
        ("64KB", 64000),
    ],
)
def test_sizes_are_read_in_the_ways_that_people_write_them(text: str, count_bytes: int) -> None:
    assert parse_amount(text).of(10 * GIB) == count_bytes


def test_a_share_is_of_what_the_device_has() -> None:
    assert parse_amount("5%").of(200) == 10


@pytest.mark.parametrize("text", ["", "much", "5 apples", "101%", "-1"])
def test_what_is_no_amount_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no size|more than all"):
        parse_amount(text)


def test_amounts_are_for_one_device_or_for_all_but_the_cpu() -> None:
    amounts = parse_amounts("10%, RPC:127.0.0.1:5/0=1GiB")
    assert amount_for(amounts, "GPU-x", is_cpu=False) == Amount(share=0.1)
    assert amount_for(amounts, "RPC:127.0.0.1:5/0", is_cpu=False) == Amount(count_bytes=GIB)
    assert amount_for(amounts, "cpu", is_cpu=True) is None
    assert amount_for(parse_amounts("cpu=2G"), "cpu", is_cpu=True) == Amount(count_bytes=2 * GIB)
    assert parse_amounts("") == {}


def test_two_amounts_for_one_device_are_refused() -> None:
    with pytest.raises(ValueError, match="two amounts for GPU-x"):
        parse_amounts("GPU-x=1G,GPU-x=2G")


def test_rpc_servers_say_what_their_memory_comes_out_of() -> None:
    assert parse_rpc_servers("127.0.0.1:5, [::1]:6=own") == (
        RpcServer(address="127.0.0.1:5"),
        RpcServer(address="[::1]:6", pool=RpcPool.OWN),
    )
    with pytest.raises(ValueError, match="'mine' is no pool"):
        parse_rpc_servers("127.0.0.1:5=mine")
    with pytest.raises(ValueError, match="named twice"):
        parse_rpc_servers("127.0.0.1:5,127.0.0.1:5=own")


def test_device_ids_are_a_list() -> None:
    assert parse_device_ids(" GPU-a ,GPU-b,") == {"GPU-a", "GPU-b"}
