"""Roles that may call each gRPC method of the cluster. A method without a row is refused. Pure."""

from common.errors import PermissionDenied
from common.trust.roles import Role, RoleName

_GATEWAY = frozenset({Role.GATEWAY})
_SCHEDULER = frozenset({Role.SCHEDULER})
_CONTROL = frozenset({Role.GATEWAY, Role.OPERATOR})
_NOT_ROLES: frozenset[Role] = frozenset()

_SERVICES: dict[str, dict[str, frozenset[Role]]] = {
    "puna.v1.Discovery": {
        "Register": frozenset({Role.NODE}),
        "Revoke": _SCHEDULER,
        "WatchInventory": frozenset({Role.SCHEDULER, Role.NODE, Role.OPERATOR}),
    },
    "puna.v1.Scheduler": {
        **dict.fromkeys(("WatchRoutes", "ListNodes", "ListConstraints", "Explain"), _CONTROL),
        # People change the cluster through gateways, which have an audit log.
        **dict.fromkeys(
            (
                "EnsureModel",
                "UnloadModel",
                "PutConstraints",
                "RemoveConstraints",
                "ClearDevice",
                "Drain",
                "Undrain",
                "RemoveNode",
                "PutAlias",
                "RemoveAlias",
                "ReportQueues",
            ),
            _GATEWAY,
        ),
    },
    "puna.v1.Host": {
        **dict.fromkeys(("Measure", "Start", "Stop", "ResetDevice", "ExcuseCrash", "Lend"), _SCHEDULER),
        # Keys with admin:cluster ask gateways for it; nodes that are marked as production refuse.
        "InjectFault": _GATEWAY,
        # Gateways know the salts of tenants.
        "ForgetStates": _GATEWAY,
        # Nodes fetch saved states from each other.
        "ReadState": frozenset({Role.NODE}),
    },
    "puna.v1.ModelStore": {
        **dict.fromkeys(("Pull", "Create", "Copy", "Delete", "PutBlob", "ReadHeader"), _GATEWAY),
        # Nodes fetch files from each other.
        **dict.fromkeys(("StatBlob", "ReadBlob", "ReadManifest"), frozenset({Role.GATEWAY, Role.NODE})),
    },
    "puna.v1.Runner": {
        **dict.fromkeys(
            ("Generate", "Multiplex", "Probation", "Embed", "Rerank", "Tokenize", "Detokenize", "WatchLoad"), _GATEWAY
        ),
        "GetInfo": frozenset({Role.GATEWAY, Role.SCHEDULER}),
        **dict.fromkeys(("UseThreads", "UseIdentity"), _NOT_ROLES),
    },
    "puna.v1.Authority": {
        **dict.fromkeys(("GetAuthorities", "Renew"), frozenset({Role.NODE})),
        # Tokens decide, on a listener that asks for no certificate (discovery/authority_servicer.py).
        "Join": _NOT_ROLES,
    },
    # Keys decide, on a listener that asks for no certificate (gateway/grpc/grpc_keys.py).
    "puna.v1.Inference": dict.fromkeys(
        (
            "Chat",
            "Generate",
            "Embed",
            "Rerank",
            "Tokenize",
            "Detokenize",
            "CountTokens",
            "ListModels",
            "ShowModel",
            "LoadModel",
            "UnloadModel",
            "PullModel",
        ),
        _NOT_ROLES,
    ),
    "grpc.health.v1.Health": dict.fromkeys(("Check", "List", "Watch"), frozenset(Role)),
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": frozenset({Role.OPERATOR})},
}
TABLE = {f"/{service}/{method}": roles for service, methods in _SERVICES.items() for method, roles in methods.items()}
# A host may call these of its own runners, and of no others.
OWN = frozenset(f"/puna.v1.Runner/{method}" for method in ("GetInfo", "WatchLoad", "UseThreads", "UseIdentity"))


def check_access(method: str, caller: RoleName, *, own: RoleName) -> None:
    """Let a caller pass.

    Raises:
        PermissionDenied: its role may not call this method.
    """
    is_own_host = own.role is Role.RUNNER and caller == RoleName(Role.NODE, own.node_id)
    if caller.role in TABLE.get(method, ()) or (is_own_host and method in OWN):
        return
    raise PermissionDenied(f"{caller} may not call {method}")
