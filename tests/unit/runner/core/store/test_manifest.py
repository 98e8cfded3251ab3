"""Manifests as registries and other stores have them, and as nobody should."""

import contextlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import BadModelFile
from runner.core.store.digests import combined, file_name, parse_digest, qualified
from runner.core.store.manifest import (
    CONFIG_TYPE,
    LAYERS_MAX,
    MANIFEST_BYTES_MAX,
    Layer,
    MediaType,
    parse_manifest,
    write_manifest,
)

A, B = "a" * 64, "b" * 64
CONFIG = Layer(media_type=CONFIG_TYPE, digest=A, size_bytes=3)
MODEL = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{B}", "size": 7}


def manifest(**changes: object) -> bytes:
    return orjson.dumps({"schemaVersion": 2, "config": None, "layers": [MODEL]} | changes)


def test_a_manifest_is_read_as_it_was_written() -> None:
    layers = (
        Layer(media_type=MediaType.MODEL, digest=B, size_bytes=7),
        Layer(media_type=MediaType.ADAPTER, digest=A, size_bytes=9, scale=0.25),
        Layer(media_type="application/x.unknown", digest=A, size_bytes=9),
    )
    read = parse_manifest(write_manifest(CONFIG, layers))
    assert (read.config, read.layers) == (CONFIG, layers)
    assert [layer.digest for layer in read.blobs()] == [B, A]
    assert read.of(MediaType.MODEL) == layers[:1]


def test_a_manifest_without_a_config_is_read() -> None:
    assert parse_manifest(manifest()).config is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        manifest(schemaVersion=1),
        manifest(schemaVersion="2"),
        manifest(mediaType="application/vnd.oci.image.index.v1+json"),
        manifest(mediaType=5),
        manifest(layers=None),
        manifest(layers={}),
        manifest(layers=["x"]),
        manifest(layers=[MODEL] * (LAYERS_MAX + 1)),
        manifest(layers=[MODEL | {"digest": "sha256:../../etc/passwd"}]),
        manifest(layers=[MODEL | {"digest": f"sha256:{B.upper()}"}]),
        manifest(layers=[MODEL | {"digest": f"sha512:{B}"}]),
        manifest(layers=[MODEL | {"digest": f"sha256:{B}\n"}]),
        manifest(layers=[MODEL | {"digest": 5}]),
        manifest(layers=[MODEL | {"digest": ""}]),
        manifest(layers=[MODEL | {"size": -1}]),
        manifest(layers=[MODEL | {"size": "7"}]),
        manifest(layers=[MODEL | {"size": True}]),
        manifest(layers=[MODEL | {"size": 2**60}]),
        manifest(layers=[MODEL | {"mediaType": None}]),
        manifest(layers=[MODEL | {"mediaType": "x" * 256}]),
        manifest(layers=[MODEL | {"annotations": {"puna.adapter.scale": "inf"}}]),
        manifest(layers=[MODEL | {"annotations": {"puna.adapter.scale": "x"}}]),
        b" " * (MANIFEST_BYTES_MAX + 1),
    ],
)
def test_what_is_no_manifest_is_refused(content: bytes) -> None:
    with pytest.raises(BadModelFile, match="manifest"):
        parse_manifest(content)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**40), 2**63) | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["schemaVersion", "layers", "config", "digest", "size", "mediaType", "annotations"]),
                inner,
            )
        ),
        max_leaves=20,
    )
)
def test_any_json_is_read_or_refused(value: object) -> None:
    content = orjson.dumps({"schemaVersion": 2, "layers": [value], "config": value})
    with contextlib.suppress(BadModelFile):
        parse_manifest(content)


@pytest.mark.parametrize("text", [A, f"sha256:{A}", f"sha256-{A}"])
def test_digests_are_read_in_all_their_spellings(text: str) -> None:
    assert (parse_digest(text), qualified(text), file_name(text)) == (A, f"sha256:{A}", f"sha256-{A}")


@pytest.mark.parametrize("text", ["", "x", A[1:], A + "a", A.upper(), f"sha256:sha256-{A}", "../" + A, A + "\n"])
def test_what_is_no_digest_names_no_file(text: str) -> None:
    with pytest.raises(ValueError, match="no sha256 digest"):
        parse_digest(text)


def test_files_that_load_together_have_a_digest_of_their_order() -> None:
    assert len({combined([A, B]), combined([B, A]), combined([A])}) == 3


def test_a_digest_of_several_files_is_of_no_other_list_of_them() -> None:
    assert combined(["ab", "c"]) != combined(["a", "bc"])


def test_a_parent_of_a_layer_is_kept_unless_it_is_no_name() -> None:
    layer = {**MODEL, "from": "p" * 1024}
    assert parse_manifest(manifest(layers=[layer])).layers[0].parent == "p" * 1024
    for parent in ("p" * 1025, 7):
        assert parse_manifest(manifest(layers=[{**MODEL, "from": parent}])).layers[0].parent == ""
