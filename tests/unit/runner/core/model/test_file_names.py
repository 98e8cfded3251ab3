"""Names of models from names of files."""

import re
from pathlib import PurePath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from common.model_names import is_model_name
from common.paths import printable
from gateway.core.request.model_names import parse_model_name
from runner.core.model.file_names import NameClaim, distinct_names, is_own_name, model_name, why_unusable
from runner.core.store.names import StoreName
from tests.file_names import AWKWARD, file_names


@pytest.mark.parametrize(
    ("file_name", "name"),
    [
        ("demo.gguf", "demo:latest"),
        ("qwen3_8b.gguf", "qwen3_8b:latest"),
        ("qwen3:8b.gguf", "qwen3:8b"),
        ("a.b-Q4_K_M.gguf", "a.b-Q4_K_M:latest"),
        ("a--b-.gguf", "a--b-:latest"),
        ("x-00001-of-00003.gguf", "x:latest"),
        ("UPPER.GGUF", "UPPER:latest"),
        ("my model (1).gguf", "my-model-1:latest"),
        ("my x-00001-of-00003.GGUF", "my-x:latest"),
        ("gemma+x.gguf", "gemma-x:latest"),
        ("-lead.gguf", "lead:latest"),
        ("é.gguf", "e:latest"),
        ("e\u0301.gguf", "e:latest"),
        ("Ｑｗｅｎ２.gguf", "Qwen2:latest"),
        ("a:b:c.gguf", "a:b-c"),
        ("q w:8 b.gguf", "q-w:8-b"),
        ("foo:.gguf", "foo:latest"),
        # With a hash: these must never change, because people use the names.
        ("模型.gguf", "model-c98e118e:latest"),
        ("模型-7B.gguf", "7B-a4fb664c:latest"),
        ("🦙.gguf", "model-0dfc3e20:latest"),
        ("m" * 85 + ".gguf", "m" * 71 + "-a0704f36:latest"),
    ],
)
def test_a_file_is_named_by_its_stem_and_what_no_name_has_is_left_out(file_name: str, name: str) -> None:
    assert model_name(PurePath("/models") / file_name) == name


@given(file_names())
def test_every_file_name_becomes_a_name_that_every_service_takes(file_name: str) -> None:
    name = model_name(PurePath(file_name))
    assert is_model_name(name)
    assert parse_model_name(name).short == name == StoreName.parse(name).short()


@given(st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,79})?", fullmatch=True))
def test_a_valid_name_stays_as_it_is(stem: str) -> None:
    if "-of-" not in stem:
        assert model_name(PurePath(f"{stem}.gguf")) == (stem if ":" in stem else f"{stem}:latest")


@given(st.lists(st.tuples(st.booleans(), file_names()), max_size=30), st.sets(file_names(), max_size=3))
@example([(False, name) for name in AWKWARD], set())
def test_no_two_models_have_one_name_whatever_the_order(files: list[tuple[bool, str]], stored: set[str]) -> None:
    taken = {model_name(PurePath(name)) for name in stored}
    claims = [claim(f"{index}/{name}", is_broken=is_broken) for index, (is_broken, name) in enumerate(files)]
    names = distinct_names(claims, taken)
    keys = [name.lower() for name in names]
    assert len({*keys}) == len(keys)
    assert not {*keys} & {name.lower() for name in taken}
    assert all(is_model_name(name) for name in names)
    assert dict(zip(reversed(claims), distinct_names(claims[::-1], taken), strict=True)) == dict(
        zip(claims, names, strict=True)
    )


def claim(path: str, *, is_broken: bool = False) -> NameClaim:
    file = PurePath(path)
    return NameClaim(is_broken=is_broken, is_own=is_own_name(file), name=model_name(file), path=file)


@pytest.mark.parametrize(
    ("winner", "loser"),
    [
        (claim("z/my-model.gguf"), claim("my model.gguf")),
        (claim("z/x.gguf"), claim("x.gguf", is_broken=True)),
        (claim("z/x y.gguf"), claim("x-y.gguf", is_broken=True)),
        (claim("z/demo.gguf"), claim("Demo.gguf")),
        (claim("demo.gguf"), claim("demo.GGUF")),
        (claim("x.gguf"), claim("a/x.gguf")),
        (claim("a/x.gguf"), claim("b/x.gguf")),
    ],
)
def test_of_two_claims_to_a_name_one_always_wins_and_the_other_gets_a_hash(winner: NameClaim, loser: NameClaim) -> None:
    first, second = distinct_names([winner, loser], [])
    assert first == winner.name
    assert re.fullmatch(rf"{loser.name.removesuffix(':latest')}-[0-9a-f]{{8}}:latest", second)
    assert distinct_names([loser, winner], []) == [second, first]


def test_a_stored_model_and_another_case_take_a_name_too() -> None:
    names = distinct_names([claim("Demo.gguf"), claim("demo.gguf")], ["DEMO:latest"])
    assert [name[:5] for name in names] == ["Demo-", "demo-"]
    assert names == distinct_names([claim("Demo.gguf"), claim("demo.gguf")], ["DEMO:latest"])


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("a\udce9.gguf", r"a\xe9.gguf: the name is not UTF-8; rename it"),
        ("sub\udce9/x.gguf", r"sub\xe9/x.gguf: the name is not UTF-8; rename it"),
        ("two\nlines.gguf", r"two\nlines.gguf: the name has a control character; rename it"),
        ("\x1b[31mred.gguf", r"\x1b[31mred.gguf: the name has a control character; rename it"),
        ("模型 (1).gguf", ""),
    ],
)
def test_names_that_cannot_be_sent_or_shown_are_unusable_and_escaped(path: str, reason: str) -> None:
    assert why_unusable(path) == reason


@given(file_names())
def test_any_path_can_be_shown(path: str) -> None:
    assert printable(path).isprintable()
    printable(path).encode()
