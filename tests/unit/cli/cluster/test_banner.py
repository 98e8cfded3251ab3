"""The banner of `puna up`: the address of each kind of client, as the client wants it."""

from pathlib import Path

import pytest

from cli.cluster.home import Home
from cli.cluster.plan import Addresses, UpRequest, plan_addresses
from cli.cluster.up import joined_banner, ready_banner

MODELS = Path("/srv/models")


def addresses(*, tls: bool = False, opened: str = "", joined: str = "", http: str = "127.0.0.1:11434") -> Addresses:
    home = Home(real=Path("/srv/puna"), path=Path("/srv/puna"))
    request = UpRequest(
        home=home.real,
        http=http,
        grpc="127.0.0.1:11435",
        models=None,
        redis_url=None,
        tls=tls,
        opened=opened,
        joined=joined,
    )
    return plan_addresses(home, request)


def rows(banner: str) -> dict[str, str]:
    return dict(line.split(maxsplit=1) for line in banner.splitlines() if line.startswith("  "))


def test_each_dialect_has_the_base_url_that_its_clients_take() -> None:
    shown = rows(ready_banner(MODELS, addresses(), demo=True))
    assert shown["Ollama"] == "http://127.0.0.1:11434"
    assert shown["OpenAI"] == "http://127.0.0.1:11434/v1"
    assert shown["Anthropic"] == "http://127.0.0.1:11434"
    assert shown["gRPC"].startswith("127.0.0.1:11435 ")
    assert shown["page"] == "http://127.0.0.1:11434/ui"


def test_a_certificate_and_an_open_address_change_every_url() -> None:
    banner = ready_banner(MODELS, addresses(tls=True, http="0.0.0.0:443"), demo=False)
    assert "http://" not in banner
    assert "0.0.0.0" not in banner


def test_the_question_is_only_shown_where_the_demo_model_is() -> None:
    assert '/api/chat -d \'{"model": "demo"' in ready_banner(MODELS, addresses(), demo=True)
    without = ready_banner(MODELS, addresses(), demo=False)
    assert "demo" not in without
    assert "/api/tags" in without


def test_agents_are_one_command_away() -> None:
    assert "puna connect claude-code" in ready_banner(MODELS, addresses(), demo=True)


@pytest.mark.parametrize("join", [[], ["puna up --join 10.0.0.1 --token T", "make up JOIN=10.0.0.1 TOKEN=T"]])
def test_each_way_to_join_is_a_line_of_its_own(join: list[str]) -> None:
    banner = ready_banner(MODELS, addresses(opened="10.0.0.1"), demo=True, join=join)
    assert [line.split(maxsplit=1)[1] for line in banner.splitlines() if line.startswith("  join ")] == join


def test_the_banner_fits_a_screen_with_room_for_the_command_above() -> None:
    assert len(ready_banner(MODELS, addresses(opened="10.0.0.1"), demo=True).splitlines()) <= 16


def test_a_node_names_the_cluster_that_it_belongs_to() -> None:
    banner = joined_banner(addresses(joined="10.0.0.1:7601"))
    assert "10.0.0.1:7601" in banner
    assert "Ollama" not in banner
