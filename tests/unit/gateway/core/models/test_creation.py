"""Creation of models: refusals before any node is asked, and the choice of the node."""

import pytest

from common.errors import InvalidRequest, NotSupported
from gateway.core.models.creation import (
    blob_digest,
    check_origin,
    checked_files,
    is_relative_path,
    license_texts,
    new_name,
)
from gateway.core.models.model_card import measured_reports, model_info, modelfile_of, own_parameters, parameters_text
from gateway.core.models.routes import DeviceShare, ModelInfo, ReplicaInfo, ReplicaState, RouteInfo
from gateway.core.models.store_choice import StoreNode, holders, node_to_create, node_to_pull, pull_sources, roomiest
from gateway.core.request.answers import Message
from gateway.http.endpoint.blob_body import BYTES_PER_S_MIN, PAUSE_S_MAX, UploadPace
from gateway.models.model_store import store_nodes
from protos import cluster_pb2, discovery_pb2

DIGEST = "ab" * 32


@pytest.mark.parametrize("text", [f"sha256:{DIGEST}", f"sha256-{DIGEST}"])
def test_a_digest_is_64_small_hex_digits(text: str) -> None:
    assert blob_digest(text) == DIGEST


@pytest.mark.parametrize(
    "text", ["", "sha256:", DIGEST, f"sha256:{DIGEST.upper()}", f"sha256:{DIGEST}0", f"sha256:{DIGEST}/..", "sha1:ab"]
)
def test_anything_else_is_no_digest(text: str) -> None:
    with pytest.raises(InvalidRequest, match="invalid digest format"):
        blob_digest(text)


@pytest.mark.parametrize("name", ["m.gguf", "a/b.gguf", "a b.gguf", "modèle.gguf"])
def test_files_stay_where_they_are_put(name: str) -> None:
    assert is_relative_path(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../m", "a/../../m", "/m", "C:m", "C:\\m", "a\\m", "a//m", "./m", "a/", "m\x00", "m\n", "x" * 600],
)
def test_files_that_leave_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="file path must be relative"):
        checked_files({name: f"sha256:{DIGEST}"}, param="files")


def test_other_formats_and_too_many_files_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="only GGUF files"):
        checked_files({"model.safetensors": f"sha256:{DIGEST}"}, param="files")
    with pytest.raises(InvalidRequest, match="at most 1000"):
        checked_files({f"{number}.gguf": f"sha256:{DIGEST}" for number in range(1001)}, param="files")
    assert checked_files({"m.gguf": f"sha256:{DIGEST}"}, param="files") == {"m.gguf": DIGEST}


def test_a_model_is_made_from_one_thing() -> None:
    with pytest.raises(InvalidRequest, match="neither 'from' or 'files' was specified"):
        check_origin("", {}, "")
    with pytest.raises(InvalidRequest, match="exclude each other"):
        check_origin("demo", {"m.gguf": DIGEST}, "")
    with pytest.raises(NotSupported):
        check_origin("demo", {}, "q4_K_M")


def test_names_and_licenses() -> None:
    assert new_name("Mine") == "Mine:latest"
    for bad in ("../x", "a//b", "C:\\x", "x\x00", "x" * 10_000, "a/b/c/d", "%2fetc"):
        with pytest.raises(InvalidRequest, match="invalid model name"):
            new_name(bad)
    assert license_texts("MIT") == ["MIT"]
    assert license_texts(["a", "", "b"]) == ["a", "b"]
    assert license_texts(None) == []
    with pytest.raises(InvalidRequest):
        license_texts({"a": 1})


def test_a_slow_client_has_ten_seconds_and_then_its_rate() -> None:
    pace = UploadPace().after(BYTES_PER_S_MIN, 1.0)
    assert pace.left_s == PAUSE_S_MAX
    assert UploadPace().after(0, 9.0).left_s == 1.0
    slow = UploadPace()
    for _ in range(19):
        slow = slow.after(BYTES_PER_S_MIN // 2, 1.0)
    assert 0 < slow.left_s <= 0.5
    quick = UploadPace().after(100 * BYTES_PER_S_MIN, 0.1)
    assert quick.left_s == PAUSE_S_MAX  # what came early buys no long silence


A = StoreNode(id="a", address="a:1", free_bytes=10, models=frozenset({"x"}))
B = StoreNode(id="b", address="b:1", free_bytes=30)
C = StoreNode(id="c", address="c:1", free_bytes=30)
GONE = StoreNode(id="d", address="d:1", free_bytes=90, is_silent=True, models=frozenset({"x"}))
NODES = (GONE, C, B, A)


def test_what_is_new_goes_where_there_is_room_and_a_pull_to_who_has_the_name() -> None:
    assert roomiest(NODES) is B
    assert roomiest([GONE]) is None
    assert node_to_pull(NODES, "x") is A
    assert node_to_pull(NODES, "y") is B
    assert pull_sources(NODES, B) == ("a:1", "c:1")
    assert holders(NODES, "x") == (A, GONE)


def test_a_model_is_made_where_most_of_it_lies() -> None:
    assert node_to_create(NODES, {"a": {"1": 5}, "c": {"2": 7}}) is C
    assert node_to_create(NODES, {}) is B
    assert node_to_create([], {}) is None


def test_names_that_nobody_can_write_are_in_no_store() -> None:
    models = [cluster_pb2.Model(name="Demo:latest"), cluster_pb2.Model(name="no name:latest")]
    node = cluster_pb2.Node(id="n", address="n:1", models=models, models_free_bytes=5, suspect=True)
    (found,) = store_nodes(discovery_pb2.Inventory(nodes=[node]))
    assert found.models == {"registry.ollama.ai/library/demo:latest"}
    assert (found.free_bytes, found.is_silent) == (5, True)


CARD = ModelInfo(
    name="mine:latest",
    digest="d",
    sampling_defaults={"top_k": 7},
    parameters_json='{"stop": ["a", "b c"], "temperature": 0.5, "mirostat": 2}',
    licenses=("MIT",),
)


def test_parameters_are_shown_one_a_line_with_those_that_are_not_used() -> None:
    assert parameters_text(own_parameters(CARD)).splitlines() == [
        "mirostat                       2",
        'stop                           "a"',
        'stop                           "b c"',
        "temperature                    0.5",
        "top_k                          7",
    ]


def test_the_modelfile_of_a_model_says_everything() -> None:
    text = modelfile_of(
        CARD, template="{{ .Prompt }}", system="Be\nbrief", parameters={"stop": ["a"], "use_mmap": True},
        messages=[Message(role="user", content="hi")],
    )  # fmt: skip
    assert text.splitlines()[2:] == [
        "FROM mine:latest",
        "TEMPLATE {{ .Prompt }}",
        'SYSTEM """Be',
        'brief"""',
        "PARAMETER stop a",
        "PARAMETER use_mmap true",
        "MESSAGE user hi",
        "LICENSE MIT",
    ]


def test_long_arrays_are_left_out_unless_all_is_asked_for() -> None:
    metadata = {"a": [1, 2, 3, 4, 5, 6], "b": [1], "c": None}
    assert model_info(metadata, verbose=False) == {"a": [], "b": [1], "c": []}
    assert model_info(metadata, verbose=True)["a"] == [1, 2, 3, 4, 5, 6]


def test_reports_are_those_of_replicas_that_were_measured() -> None:
    replica = ReplicaInfo(
        placement_id="p", generation=1, incarnation="i", node_id="n", address="", state=ReplicaState.READY,
        context_tokens=512, slots_total=2,
        devices=(DeviceShare(device_id="g", name="GPU", layer_count=3, size_bytes=9),),
    )  # fmt: skip
    loading = ReplicaInfo(
        placement_id="q", generation=1, incarnation="i", node_id="n", address="", state=ReplicaState.LOADING,
        context_tokens=256, slots_total=2,
    )  # fmt: skip
    (report,) = measured_reports(RouteInfo(model=CARD, replicas=(loading, replica)))
    assert (report["context_length"], report["slots"], report["host_bytes"]) == (512, 2, 0)
    assert report["devices"] == [{"id": "g", "name": "GPU", "layers": 3, "bytes": 9}]
