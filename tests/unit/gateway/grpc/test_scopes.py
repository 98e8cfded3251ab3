"""Every route has its scope, and it is the one of the table."""

from typing import Any, cast

from common.network import peer_address
from gateway.core.keys.keys import Scope
from gateway.grpc.grpc_keys import SCOPES
from gateway.grpc.inference_servicer import SERVICE_NAME
from gateway.http.endpoint.service import Service
from gateway.http.routes import make_routes
from protos import inference_pb2

INFER, EMBED, READ, WRITE = Scope.INFER, Scope.EMBED, Scope.MODELS_READ, Scope.MODELS_WRITE
CLUSTER = Scope.ADMIN_CLUSTER
TABLE: dict[tuple[str, str], Scope | None] = {
    ("GET", "/"): None,
    ("HEAD", "/"): None,
    ("GET", "/api/version"): None,
    ("HEAD", "/api/version"): None,
    **{("GET", path): None for path in ("/healthz", "/health", "/v1/health")},
    ("GET", "/readyz"): None,
    ("GET", "/openapi.json"): None,
    ("POST", "/api/generate"): INFER,
    ("POST", "/api/chat"): INFER,
    ("POST", "/api/embed"): EMBED,
    ("POST", "/api/embeddings"): EMBED,
    ("POST", "/v1/embeddings"): EMBED,
    ("POST", "/v1/rerank"): EMBED,
    ("POST", "/v2/rerank"): EMBED,
    ("POST", "/rerank"): EMBED,
    ("POST", "/v1/chat/completions"): INFER,
    ("POST", "/v1/completions"): INFER,
    ("POST", "/v1/responses"): INFER,
    ("POST", "/v1/responses/input_tokens"): INFER,
    ("POST", "/v1/responses/compact"): INFER,
    ("POST", "/v1/messages"): INFER,
    ("POST", "/v1/messages/count_tokens"): INFER,
    ("GET", "/v1/models"): READ,
    ("GET", "/v1/models/{id}"): READ,
    ("GET", "/api/tags"): READ,
    ("HEAD", "/api/tags"): READ,
    ("POST", "/api/show"): READ,
    ("GET", "/api/ps"): READ,
    ("GET", "/metrics"): Scope.METRICS,
    ("GET", "/puna/v1/targets"): Scope.METRICS,
    ("GET", "/puna/v1/config"): CLUSTER,
    ("GET", "/puna/v1/nodes"): READ,
    ("GET", "/puna/v1/placements"): READ,
    ("GET", "/puna/v1/placements/{model}"): READ,
    ("PUT", "/puna/v1/placements/{model}"): CLUSTER,
    ("DELETE", "/puna/v1/placements/{model}"): CLUSTER,
    ("GET", "/puna/v1/explain"): READ,
    ("POST", "/puna/v1/explain"): READ,
    ("POST", "/puna/v1/explain/prompt"): READ,
    ("POST", "/puna/v1/tokenize"): READ,
    ("POST", "/puna/v1/detokenize"): READ,
    ("GET", "/puna/v1/queue"): READ,
    ("GET", "/puna/v1/aliases"): READ,
    ("PUT", "/puna/v1/aliases/{alias}"): CLUSTER,
    ("DELETE", "/puna/v1/aliases/{alias}"): CLUSTER,
    ("GET", "/puna/v1/models/{model}/policy"): CLUSTER,
    ("PUT", "/puna/v1/models/{model}/policy"): CLUSTER,
    ("POST", "/puna/v1/load"): WRITE,
    ("POST", "/puna/v1/unload"): WRITE,
    ("POST", "/puna/v1/move"): CLUSTER,
    ("POST", "/puna/v1/devices/clear"): CLUSTER,
    ("POST", "/puna/v1/chaos"): CLUSTER,
    ("POST", "/puna/v1/states/forget"): CLUSTER,
    ("POST", "/puna/v1/nodes/{node}/drain"): CLUSTER,
    ("POST", "/puna/v1/nodes/{node}/remove"): CLUSTER,
    ("POST", "/puna/v1/nodes/{node}/undrain"): CLUSTER,
    ("GET", "/api/status"): None,
    ("POST", "/api/pull"): WRITE,
    ("POST", "/api/create"): WRITE,
    ("POST", "/api/copy"): WRITE,
    ("DELETE", "/api/delete"): WRITE,
    ("HEAD", "/api/blobs/{digest}"): WRITE,
    ("POST", "/api/blobs/{digest}"): WRITE,
    ("POST", "/api/push"): WRITE,
    ("POST", "/api/me"): WRITE,
    ("POST", "/api/signout"): WRITE,
    ("POST", "/api/experimental/{path}"): WRITE,
    ("GET", "/puna/v1/keys"): Scope.ADMIN_KEYS,
    ("POST", "/puna/v1/keys"): Scope.ADMIN_KEYS,
    ("GET", "/puna/v1/keys/{id}"): Scope.ADMIN_KEYS,
    ("DELETE", "/puna/v1/keys/{id}"): Scope.ADMIN_KEYS,
    ("GET", "/ui"): None,
    ("GET", "/ui/{file}"): None,
    ("GET", "/puna/v1/events"): READ,
    ("GET", "/puna/v1/whoami"): None,
    **{("*", f"/v1/{family}/{{path}}"): INFER for family in (
        "assistants", "audio", "batches", "containers", "conversations", "evals", "files", "fine_tuning", "images",
        "messages/batches", "moderations", "realtime", "threads", "uploads", "vector_stores", "videos",
    )},
}  # fmt: skip


def test_every_route_has_the_scope_of_the_table_and_no_other_route_exists() -> None:
    nothing = cast("Any", None)
    service = Service(inference=nothing, scheduler=nothing, stores=nothing, version="0")
    assert {(route.method, route.path): route.scope for route in make_routes(service)} == TABLE


def test_every_method_over_grpc_has_a_scope() -> None:
    service = inference_pb2.DESCRIPTOR.services_by_name[SERVICE_NAME.rpartition(".")[2]]
    assert SCOPES.keys() == {method.name for method in service.methods}


def test_addresses_of_grpc_peers_are_read() -> None:
    assert peer_address("ipv4:10.0.0.1:5000") == "10.0.0.1"
    assert peer_address("ipv6:[::1]:5000") == "::1"
    assert peer_address("ipv6:%5B::1%5D:5000") == "::1"
    assert peer_address("unix:/run/puna.sock") == ""
