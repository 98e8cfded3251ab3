import pytest

from cli.core.server_address import connect_url, is_loopback_url, listen_address


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("", "http://127.0.0.1:11434"),
        ("example.org", "http://example.org:11434"),
        ("example.org:80", "http://example.org:80"),
        (":4000", "http://127.0.0.1:4000"),
        ("http://example.org", "http://example.org:80"),
        ("https://example.org/", "https://example.org:443"),
        ("[::1]:5000", "http://[::1]:5000"),
        (' "example.org" ', "http://example.org:11434"),
    ],
)
def test_puna_host_names_the_server_as_ollama_host_does(text: str, url: str) -> None:
    assert connect_url(text) == url


def test_a_server_that_listens_everywhere_is_dialled_on_the_loopback() -> None:
    assert connect_url("0.0.0.0:11434") == "http://127.0.0.1:11434"
    assert connect_url("[::]:11434") == "http://[::1]:11434"


@pytest.mark.parametrize("text", ["ftp://example.org", "example.org:port", "example.org:99999", "example.org/path"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"valid port|only http|host:port"):
        connect_url(text)


def test_an_explicit_port_wins_over_the_one_in_the_address() -> None:
    assert listen_address("127.0.0.1:9000", port=9001, default_port=11434) == "127.0.0.1:9001"
    assert listen_address("127.0.0.1:9000", port=None, default_port=11434) == "127.0.0.1:9000"
    assert listen_address("127.0.0.1", port=None, default_port=11434) == "127.0.0.1:11434"
    assert listen_address(None, port=0, default_port=11434) == "127.0.0.1:0"


def test_the_loopback_is_recognised_in_a_url() -> None:
    assert is_loopback_url("http://127.0.0.1:11434")
    assert is_loopback_url("http://localhost:1")
    assert is_loopback_url("http://[::1]:1")
    assert not is_loopback_url("http://example.org:11434")
