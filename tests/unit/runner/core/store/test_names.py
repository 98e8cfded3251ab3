"""Names of the store: the grammar, and that no name leads out of the store."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import InvalidRequest
from runner.core.store.names import StoreName

ALPHANUMERIC = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def parts(others: str, length_max: int = 80) -> st.SearchStrategy[str]:
    first = st.sampled_from(ALPHANUMERIC + "_")
    return st.builds(str.__add__, first, st.text(ALPHANUMERIC + others, max_size=length_max - 1))


HOSTS = st.builds(str.__add__, parts("_.-", 344), st.sampled_from(["", ":1", ":5000", ":65535"]))
NAMESPACES, MODELS = parts("_-"), parts("_.-")


@pytest.mark.parametrize(
    ("text", "full", "short"),
    [
        ("llama3", "registry.ollama.ai/library/llama3:latest", "llama3:latest"),
        ("llama3:8b", "registry.ollama.ai/library/llama3:8b", "llama3:8b"),
        ("me/llama3", "registry.ollama.ai/me/llama3:latest", "me/llama3:latest"),
        ("library/llama3", "registry.ollama.ai/library/llama3:latest", "llama3:latest"),
        ("hf.co/me/Model-GGUF:Q4_K_M", "hf.co/me/Model-GGUF:Q4_K_M", "hf.co/me/Model-GGUF:Q4_K_M"),
        ("localhost:5000/a/b", "localhost:5000/a/b:latest", "localhost:5000/a/b:latest"),
        ("localhost:5000/a/b:c", "localhost:5000/a/b:c", "localhost:5000/a/b:c"),
        ("Registry.Ollama.AI/library/x", "Registry.Ollama.AI/library/x:latest", "x:latest"),
    ],
)
def test_names_are_read_with_their_defaults(text: str, full: str, short: str) -> None:
    name = StoreName.parse(text)
    assert (name.full(), name.short()) == (full, short)


@given(HOSTS, NAMESPACES, MODELS, MODELS)
def test_every_name_of_the_grammar_is_read_as_it_was_written(host: str, namespace: str, model: str, tag: str) -> None:
    name = StoreName(host, namespace, model, tag)
    assert StoreName.parse(name.full()) == name
    assert StoreName.parse(name.short()).key == name.key


@given(st.text(max_size=60) | st.text("./:\\%\0aA0_-@ ", max_size=30))
def test_whatever_is_read_stays_below_the_store(text: str) -> None:
    try:
        name = StoreName.parse(text)
    except InvalidRequest:
        return
    root = Path("/store/manifests")
    path = Path(*(root, *name.parts()))
    assert path.parts[: len(root.parts)] == root.parts
    assert len(path.parts) == len(root.parts) + 4
    assert ".." not in path.parts
    assert all(part.isascii() and part.isprintable() for part in name.parts())


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        "../x",
        "a/../b",
        "a/b/../c",
        "..%2fx",
        "a%2fb",
        "C:\\x",
        "a\\b",
        "//a",
        "a//b",
        "/a",
        "a/",
        "a:",
        ":a",
        "a:b:c",
        "a\0b",
        "a\n",
        "a b",
        "\u0430dmin",
        "a/b.c/d",
        "-a",
        ".hidden",
        "a:-b",
        "a:..",
        "a/b/c/d",
        "http://host/a/b",
        "host:70000x/a/b",
        "x" * 81,
        "a:" + "x" * 81,
        "x" * 10_240,
        "h" * 351 + "/a/b",
    ],
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="invalid model name"):
        StoreName.parse(text)


def test_the_longest_parts_are_taken() -> None:
    text = f"{'h' * 350}/{'n' * 80}/{'m' * 80}:{'t' * 80}"
    assert StoreName.parse(text).full() == text


def test_names_in_other_letters_are_the_same_model() -> None:
    assert StoreName.parse("Me/LLama3:Q4").key == StoreName.parse("me/llama3:q4").key
