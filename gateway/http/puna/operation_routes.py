"""The routes of operators: health, nodes, placements."""

from gateway.core.keys.keys import Scope
from gateway.http.endpoint.route_errors import OF_LOADS, OF_MODEL_NAMES, OF_NODES, OF_THE_CLUSTER
from gateway.http.endpoint.router import Route
from gateway.http.endpoint.service import Service
from gateway.http.puna.config import Config
from gateway.http.puna.nodes import Nodes
from gateway.http.puna.operation_bodies import (
    ClearedDevice,
    ConfigAnswer,
    DrainedNode,
    Health,
    NodeList,
    Readiness,
    ScrapeTargets,
)
from gateway.http.puna.operations import Operations
from gateway.http.puna.placement_answers import (
    ExplanationAnswer,
    Forgotten,
    PlacementList,
    Unloaded,
    Wanted,
    WantedAndPlaced,
)
from gateway.http.puna.placement_bodies import ClearDeviceBody, ConstraintsBody, ExplainBody, LoadBody, UnloadBody
from gateway.http.puna.placements import Placements
from gateway.models.first_nodes import FirstNodes

_NDJSON = "application/x-ndjson"


def operation_routes(service: Service) -> list[Route]:
    """Health, metrics, settings and nodes."""
    operations = Operations(service, FirstNodes(service.scheduler))
    text = ("text/plain",)
    return [
        Route(
            method="GET",
            path="/healthz",
            scope=None,
            endpoint=operations.health,
            summary="Alive",
            response=Health,
            quiet=True,
        ),
        Route(
            method="GET",
            path="/readyz",
            scope=None,
            endpoint=operations.ready,
            summary="Admitting requests",
            response=Readiness,
            other_answers=((503, Readiness),),
            quiet=True,
        ),
        Route(
            method="GET",
            path="/metrics",
            scope=Scope.METRICS,
            endpoint=operations.metrics,
            summary="Prometheus metrics",
            media_types=text,
            quiet=True,
        ),
        Route(
            method="GET",
            path="/puna/v1/targets",
            scope=Scope.METRICS,
            endpoint=operations.targets,
            summary="What Prometheus is to scrape",
            response=ScrapeTargets,
            errors=OF_THE_CLUSTER,
            quiet=True,
        ),
        Route(
            method="GET",
            path="/puna/v1/config",
            scope=Scope.ADMIN_CLUSTER,
            endpoint=Config(service).respond,
            summary="The settings of this gateway as they are in effect, without secrets",
            response=ConfigAnswer,
            quiet=True,
        ),
        Route(
            method="GET",
            path="/puna/v1/nodes",
            scope=Scope.MODELS_READ,
            endpoint=operations.nodes,
            summary="Nodes and their devices",
            response=NodeList,
            errors=OF_THE_CLUSTER,
        ),
    ]


def placement_routes(service: Service) -> list[Route]:
    """What is loaded, what is wanted, and why."""
    placements, nodes = Placements(service), Nodes(service)
    one = "/puna/v1/placements/{model}"
    return [
        Route(
            method="GET",
            path="/puna/v1/placements",
            scope=Scope.MODELS_READ,
            endpoint=placements.list_all,
            summary="What is loaded and wanted",
            response=PlacementList,
            errors=OF_THE_CLUSTER | OF_MODEL_NAMES,
        ),
        Route(
            method="GET",
            path=one,
            scope=Scope.MODELS_READ,
            endpoint=placements.get,
            summary="What is wanted of a model, and its replicas",
            response=WantedAndPlaced,
            errors=OF_THE_CLUSTER | OF_MODEL_NAMES,
        ),
        Route(
            method="PUT",
            path=one,
            scope=Scope.ADMIN_CLUSTER,
            endpoint=placements.put,
            summary="Set what is wanted of a model",
            body=ConstraintsBody,
            response=Wanted,
            errors=OF_THE_CLUSTER | OF_MODEL_NAMES,
        ),
        Route(
            method="DELETE",
            path=one,
            scope=Scope.ADMIN_CLUSTER,
            endpoint=placements.delete,
            summary="Forget what is wanted of a model",
            response=Forgotten,
            errors=OF_THE_CLUSTER | OF_MODEL_NAMES,
        ),
        Route(
            method="GET",
            path="/puna/v1/explain",
            scope=Scope.MODELS_READ,
            endpoint=placements.explain_get,
            summary="Why a model lies there",
            response=ExplanationAnswer,
            errors=OF_THE_CLUSTER | OF_MODEL_NAMES,
        ),
        Route(
            method="POST",
            path="/puna/v1/explain",
            scope=Scope.MODELS_READ,
            endpoint=placements.explain_post,
            summary="Where a model would go",
            body=ExplainBody,
            response=ExplanationAnswer,
            errors=OF_THE_CLUSTER | OF_MODEL_NAMES,
        ),
        Route(
            method="POST",
            path="/puna/v1/load",
            scope=Scope.MODELS_WRITE,
            endpoint=placements.load,
            summary="Have a replica",
            body=LoadBody,
            media_types=(_NDJSON,),
            errors=OF_LOADS,
        ),
        Route(
            method="POST",
            path="/puna/v1/unload",
            scope=Scope.MODELS_WRITE,
            endpoint=placements.unload,
            summary="Stop the replicas of a model",
            body=UnloadBody,
            response=Unloaded,
            errors=OF_THE_CLUSTER | OF_MODEL_NAMES,
        ),
        Route(
            method="POST",
            path="/puna/v1/devices/clear",
            scope=Scope.ADMIN_CLUSTER,
            endpoint=placements.clear_device,
            summary="Test an excluded device again",
            body=ClearDeviceBody,
            response=ClearedDevice,
            errors=OF_NODES,
        ),
        *(
            Route(
                method="POST",
                path=f"/puna/v1/nodes/{{node}}/{name}",
                scope=Scope.ADMIN_CLUSTER,
                endpoint=endpoint,
                summary=summary,
                response=DrainedNode,
                errors=OF_NODES,
            )
            for name, endpoint, summary in (
                ("drain", nodes.drain, "Take a node out of use"),
                ("undrain", nodes.undrain, "Put a node into use again"),
            )
        ),
    ]
