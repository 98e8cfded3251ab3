"""The page's files: complete, closed to everybody else, and free of what its policy forbids."""

import re

import pytest

from gateway.core.dispatch.browser import BrowserPolicy
from gateway.http.puna.page_routes import FOLDER, page_files

FILES = page_files()
SCRIPTS = sorted(name for name in FILES if name.endswith(".js"))


def text(name: str) -> str:
    return FILES[name].content.decode()


def test_everything_that_a_file_names_is_there() -> None:
    for name in SCRIPTS:
        for imported in re.findall(r'from "\./([^"]+)"', text(name)):
            assert imported in FILES, f"{name} imports {imported}"
    for named in re.findall(r'(?:href|src)="ui/([^"]+)"', text("index.html")):
        assert named in FILES
    assert {path.name for path in FOLDER.iterdir()} == set(FILES)


def test_every_script_and_style_is_used() -> None:
    everything = "\n".join(text(name) for name in FILES)
    unused = [
        name for name in FILES if name != "index.html" and not re.search(rf'(\./|ui/){re.escape(name)}"', everything)
    ]
    assert unused == []


def test_no_address_of_another_host_is_in_any_file() -> None:
    known = {"http://www.w3.org/2000/svg"}
    for name in FILES:
        assert set(re.findall(r"https?://[\w./-]+", text(name))) <= known, name


def test_nothing_of_a_model_or_a_server_can_become_markup() -> None:
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setAttribute\(\"style"
    )
    assert [name for name in SCRIPTS if forbidden.search(text(name))] == []
    assert not re.search(r"<style|\sstyle=|\son\w+=\"|<script>", text("index.html"))


def test_keys_stay_in_the_tab() -> None:
    stored = {
        name: re.findall(r"localStorage\.\w+\((\w+)", text(name)) for name in SCRIPTS if "localStorage" in text(name)
    }
    assert list(stored) == ["theme.js"]


@pytest.mark.parametrize(
    ("origin", "host", "keys", "allowed"),
    [
        ("http://box:11434", "box:11434", True, True),
        ("https://puna.example", "puna.example", True, True),
        ("http://box:11434", "box:11434", False, False),  # a name that an attacker could point here
        ("http://10.0.0.5:11434", "10.0.0.5:11434", False, True),
        ("http://machine.local:11434", "machine.local:11434", False, True),
        ("http://puna.local:11434", "puna.local:11434", False, False),
        ("http://evil.example", "box:11434", True, False),
        ("null", "box:11434", True, False),
        ("http://", "", True, False),
    ],
)
def test_a_page_of_this_gateway_may_call_it(origin: str, host: str, *, keys: bool, allowed: bool) -> None:
    policy = BrowserPolicy(loopback_only=False, machine_name="machine", is_proven=keys)
    assert policy.is_own_page(origin, host) is allowed
