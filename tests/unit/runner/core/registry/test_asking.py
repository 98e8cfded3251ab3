"""Requests to registries: allowed addresses, answers, and redirects that are not followed."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import PermissionDenied, RegistryFailed
from runner.core.registry.addresses import Reach, authority, blob_path, manifest_path, reach_of, redirected
from runner.core.registry.allowed import DEFAULT_REGISTRIES, AllowedRegistry, find_registry, parse_registries
from runner.core.registry.challenges import Challenge, parse_challenges, token_url
from runner.core.registry.credentials import Credentials, parse_credentials
from runner.core.store.names import StoreName

SCOPE = "repository:a/b:pull"


def _registry(host: str = "registry.example") -> AllowedRegistry:
    return find_registry(parse_registries(host), host)


def test_the_default_list_has_ollamas_registry_and_the_hub() -> None:
    hosts = [registry.host for registry in parse_registries(DEFAULT_REGISTRIES)]
    assert hosts == ["registry.ollama.ai", "hf.co", "huggingface.co"]
    hub = find_registry(parse_registries(DEFAULT_REGISTRIES), "HF.co")
    assert hub.is_hub
    assert hub.equals == {"hf.co", "huggingface.co"}
    assert hub.base_url(insecure=False) == "https://hf.co"


def test_entries_may_allow_plain_http_and_name_equals() -> None:
    (registry,) = parse_registries(" http://127.0.0.1:5000=tokens.example:444 ,")
    assert registry == AllowedRegistry(
        host="127.0.0.1:5000", plain_allowed=True, equals=frozenset({"127.0.0.1:5000", "tokens.example:444"})
    )
    assert registry.base_url(insecure=True) == "http://127.0.0.1:5000"
    assert registry.base_url(insecure=False) == "https://127.0.0.1:5000"


@pytest.mark.parametrize("entry", ["https://", "a b", "user@host", "host/path", "host=", "ftp://host", "host:port"])
def test_an_entry_that_names_no_host_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        parse_registries(f"hf.co,{entry}")


@pytest.mark.parametrize("host", ["evil.example", "hf.co.evil.example", "hf.co:444", ""])
def test_a_registry_off_the_list_is_denied(host: str) -> None:
    with pytest.raises(PermissionDenied):
        find_registry(parse_registries(DEFAULT_REGISTRIES), host)


def test_plain_http_is_denied_where_the_list_does_not_allow_it() -> None:
    with pytest.raises(PermissionDenied):
        _registry().base_url(insecure=True)


def test_challenges_are_read_in_all_their_forms() -> None:
    headers = [
        'Bearer realm="https://auth.example/token?x=1",service="a \\"b\\"", scope="repository:a/b:pull,push"',
        "Basic realm=plain, Negotiate",
    ]
    assert parse_challenges(headers) == [
        Challenge(
            scheme="bearer",
            parameters={
                "realm": "https://auth.example/token?x=1",
                "service": 'a "b"',
                "scope": "repository:a/b:pull,push",
            },
        ),
        Challenge(scheme="basic", parameters={"realm": "plain"}),
        Challenge(scheme="negotiate", parameters={}),
    ]


@pytest.mark.parametrize("header", ["", ",,,", '"', "=", 'Bearer realm="open', "\0", "é" * 100])
def test_a_malformed_challenge_is_no_challenge_with_a_realm(header: str) -> None:
    assert all("realm" not in challenge.parameters for challenge in parse_challenges([header]))


def test_a_token_is_asked_for_at_the_registry_with_service_and_scope() -> None:
    challenge = Challenge(scheme="bearer", parameters={"realm": "https://registry.example/t?x=1", "service": "s p"})
    url = token_url(challenge, _registry(), scope=SCOPE, plain=False)
    assert url == "https://registry.example/t?x=1&service=s+p&scope=repository%3Aa%2Fb%3Apull"


@pytest.mark.parametrize(
    "realm",
    [
        "https://evil.example/token",
        "http://registry.example/token",
        "https://registry.example.evil.example/",
        "https://registry.example@evil.example/",
        "https://user:secret@registry.example/",
        "https://registry.example:444/",
        "file:///etc/passwd",
        "",
    ],
)
def test_a_realm_elsewhere_is_refused(realm: str) -> None:
    with pytest.raises(RegistryFailed) as caught:
        token_url(Challenge(scheme="bearer", parameters={"realm": realm}), _registry(), scope=SCOPE, plain=False)
    assert "secret" not in caught.value.message


def test_the_hub_answers_for_both_of_its_names() -> None:
    challenge = Challenge(scheme="bearer", parameters={"realm": "https://huggingface.co/token"})
    assert token_url(challenge, _registry("hf.co"), scope=SCOPE, plain=False).startswith(
        "https://huggingface.co/token?"
    )


def test_paths_are_those_of_the_protocol() -> None:
    name = StoreName.parse("hf.co/user/Model-GGUF:Q4_K_M")
    assert manifest_path(name) == "/v2/user/Model-GGUF/manifests/Q4_K_M"
    assert blob_path(name, "ab" * 32) == f"/v2/user/Model-GGUF/blobs/sha256:{'ab' * 32}"


def test_redirects_are_followed_to_other_hosts_and_relative_ones() -> None:
    start, far = "https://registry.example/v2/x", Reach.PUBLIC
    assert redirected(start, "https://cdn.example/y?s=1", plain=False, allowed=far) == "https://cdn.example/y?s=1"
    assert redirected(start, "https://8.8.8.8/y", plain=False, allowed=far) == "https://8.8.8.8/y"
    assert redirected(start, "/z", plain=False, allowed=far) == "https://registry.example/z"
    assert redirected("https://10.0.0.5/a", "/b", plain=False, allowed=far) == "https://10.0.0.5/b"
    inside = redirected("http://127.0.0.1:5000/a", "http://10.0.0.1:6000/b", plain=True, allowed=Reach.LOOPBACK)
    assert inside == "http://10.0.0.1:6000/b"


@pytest.mark.parametrize(
    "location",
    [
        "http://cdn.example/y",
        "ftp://cdn.example/y",
        "file:///etc/passwd",
        "https://user@cdn.example/y",
        "https://169.254.169.254/latest/meta-data",
        "https://[fe80::1]/",
        "https://127.0.0.1/x",
        "https://127.0.0.1./x",
        "https://127.1/x",
        "https://2130706433/x",
        "https://0x7f000001/x",
        "https://0177.0.0.01/x",
        "https://[::1]/x",
        "https://[::127.0.0.1]/x",
        "https://[::ffff:127.0.0.1]/x",
        "https://0.0.0.0/x",
        "https://10.0.0.1/x",
        "https://100.64.0.1/x",
        "https://[fd00::1]/x",
        "https://localhost/x",
        "https://LOCALHOST./x",
        "https://a.localhost/x",
    ],
)
def test_a_public_registry_leads_to_public_addresses_only(location: str) -> None:
    with pytest.raises(RegistryFailed):
        redirected("https://registry.example/v2/x", location, plain=False, allowed=Reach.PUBLIC)


@given(st.ip_addresses(v=4))
def test_an_address_inside_another_counts_as_itself(inner: ipaddress.IPv4Address) -> None:
    number = int(inner)
    forms = [0xFFFF << 32 | number, 0x64FF9B << 96 | number, 0x2002 << 112 | number << 80]
    assert {reach_of(str(ipaddress.IPv6Address(form))) for form in forms} == {reach_of(str(inner))}


def test_default_ports_are_no_difference() -> None:
    assert authority("https://A.example:443/x") == authority("https://a.example/y") == "a.example"
    assert authority("http://a.example:443/x") == "a.example:443"


def test_credentials_are_read_as_container_tools_write_them() -> None:
    content = b"""{"auths": {"https://a.example/v1/": {"auth": "dXNlcjpwYXNzOndvcmQ="},
        "B.example:5000": {"username": "u", "password": "p"}}}"""
    found = parse_credentials(content)
    assert found == {
        "a.example": Credentials(user="user", password="pass:word"),
        "b.example:5000": Credentials(user="u", password="p"),
    }
    assert "pass" not in repr(found)
    assert found["b.example:5000"].basic() == "Basic dTpw"


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"auths": []}', b'{"auths": {"a": {"auth": "secret!"}}}', b'{"auths": {"a": "secret"}}']
)
def test_a_file_of_another_form_is_refused_without_showing_it(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"auths|entry") as caught:
        parse_credentials(content)
    assert "secret" not in str(caught.value)
