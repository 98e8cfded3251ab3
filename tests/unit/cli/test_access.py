import ssl
from pathlib import Path

import httpx
import pytest

from cli.access import api_key_of, trust_of
from cli.core.server_address import CA_VARIABLE, connect_url
from cli.errors import CommandFailed, ExitCode
from cli.server import refusal, unreachable
from cli.settings import CliSettings


def key_file(directory: Path, text: str = "puna_secret\n", mode: int = 0o600) -> Path:
    path = directory / "key"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_key_comes_from_the_environment_or_a_file(tmp_path: Path) -> None:
    path = key_file(tmp_path)

    assert api_key_of(CliSettings(api_key=None, api_key_file=path)) == "puna_secret"
    assert api_key_of(CliSettings(api_key="other", api_key_file=path)) == "other"
    assert api_key_of(CliSettings(api_key=None, api_key_file=None)) is None


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_key_that_others_can_read_is_not_used(tmp_path: Path, mode: int) -> None:
    settings = CliSettings(api_key=None, api_key_file=key_file(tmp_path, mode=mode))

    with pytest.raises(CommandFailed, match="mode 0600") as failed:
        api_key_of(settings)
    assert failed.value.code is ExitCode.REFUSED


def test_a_missing_or_empty_key_file_is_refused(tmp_path: Path) -> None:
    for path, text in ((tmp_path / "none", "No such file"), (key_file(tmp_path, text="\n"), "is empty")):
        with pytest.raises(CommandFailed, match=text):
            api_key_of(CliSettings(api_key=None, api_key_file=path))


def test_certificates_are_checked_for_https_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CA_VARIABLE, raising=False)
    trust = trust_of("https://x")

    assert trust_of("http://x") is True
    assert isinstance(trust, ssl.SSLContext)
    assert trust.verify_mode is ssl.CERT_REQUIRED
    assert trust.check_hostname


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_a_file_of_authorities_without_any_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    path = tmp_path / "ca.pem"
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv(CA_VARIABLE, str(path))

    with pytest.raises(CommandFailed, match=r"ca\.pem"):
        trust_of("https://x")


def test_an_address_without_scheme_is_https_where_the_cluster_serves_that() -> None:
    assert connect_url("127.0.0.1:1", tls=True) == "https://127.0.0.1:1"
    assert connect_url("http://127.0.0.1:1", tls=True) == "http://127.0.0.1:1"


def test_an_untrusted_certificate_is_told_as_such() -> None:
    error = httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed (_ssl.c:1006)")

    failed = unreachable("https://x", error)

    assert str(failed).startswith("the certificate of https://x is not trusted (self-signed); ")
    assert failed.code is ExitCode.UNREACHABLE


def test_a_refusal_says_which_setting_is_at_fault() -> None:
    request = httpx.Request("GET", "http://x/api/tags")
    failed = refusal(httpx.Response(401, json={"error": "unauthorized"}, request=request))

    assert str(failed) == "unauthorized; PUNA_API_KEY must be a key"
    assert failed.code is ExitCode.REFUSED
    assert str(refusal(httpx.Response(502, text="<html>", request=request))) == "http://x/api/tags answered 502"
