"""Put the gateway together, serve, drain, stop."""

import asyncio
import contextlib
import logging
import resource
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from common.clock import MS_PER_S, SystemClock
from common.durations import parse_go_duration_ms
from common.effective_settings import effective_settings
from common.errors import ShuttingDown, StartupError
from common.grpc.server import Audience, GrpcServer, bind_server
from common.metrics_page import serve_metrics
from common.network import is_private_listener, notice_silence, split_host_port
from common.telemetry.collector import collect_garbage
from common.telemetry.logs import get_logger
from common.version import puna_version
from gateway import metrics
from gateway.answers.inference import Inference
from gateway.constraint_checks import ConstraintChecks
from gateway.core.dispatch.browser import BrowserPolicy
from gateway.core.dispatch.shedding import connections_max
from gateway.grpc.grpc_keys import KeyInterceptor
from gateway.grpc.inference_servicer import SERVICE_NAME, InferenceServicer
from gateway.http.endpoint.router import Router
from gateway.http.endpoint.service import Service
from gateway.http.routes import make_routes
from gateway.http.server.connections import CONNECTIONS, LimitedProtocol
from gateway.http.server.edge import Edge
from gateway.http.server.refusals import Refusals
from gateway.keys.audit import AuditLog
from gateway.keys.authorizer import Authorizer
from gateway.keys.key_redis import KeyRedis
from gateway.keys.key_store import KeyStore
from gateway.keys.made_keys import MadeKeys
from gateway.keys.quota_book import QuotaBook
from gateway.keys.visits import sender
from gateway.models.model_store import ModelStores
from gateway.models.scrape_targets import OwnAddresses
from gateway.pressure.pressure import PRESSURE, watch_pressure
from gateway.replicas.dispatch import Dispatcher
from gateway.replicas.kept_routes import current_routes, keep_routes
from gateway.replicas.queue_reports import report_queues
from gateway.replicas.route_gauges import RouteGauges
from gateway.replicas.routes import RouteCache, watch_routes
from gateway.replicas.share_exchange import exchange_shares
from gateway.settings import GatewaySettings, template_policy
from gateway.templates.chat_prompt import ChatPrompts
from gateway.templates.pool import TemplatePool
from gateway.tls import Certificate
from protos import inference_pb2_grpc
from runner.host.store_client import StoreClient
from scheduler.client import SchedulerClient

log = get_logger()

# Balancers need a moment to see that this gateway is not ready any more.
UNREADY_S = 2.0
DRAIN_S = 30.0
# After the drain every stream has got its error object; what is left are clients that do not read.
CUT_S = 2.0
IDLE_CONNECTION_S = 60
# The event loop waits no longer than this for a thread that reads large texts to give the interpreter up.
SWITCH_INTERVAL_S = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningGateway:
    """A gateway that serves. Addresses have their real ports."""

    http_address: str
    grpc_address: str
    service: Service


async def serve(settings: GatewaySettings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set, then drain.

    Raises:
        StartupError: an address is taken, or reachable from elsewhere without consent.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    metrics_address = serve_metrics(settings.metrics_listen, service="gateway", plaintext=settings.plaintext)
    scheduler = SchedulerClient(settings.scheduler_address)
    try:
        async with running_gateway(settings, scheduler=scheduler) as gateway:
            log.info(
                "gateway.ready",
                http=gateway.http_address,
                grpc=gateway.grpc_address,
                metrics=metrics_address,
                scheduler=settings.scheduler_address,
            )
            gateway.service.addresses = OwnAddresses(
                metrics=metrics_address, http=gateway.http_address, scheduler=settings.scheduler_address
            )
            await collect_garbage(stop)
            gateway.service.draining = True
            await asyncio.sleep(UNREADY_S)
    finally:
        await scheduler.close()


@contextlib.asynccontextmanager
async def running_gateway(
    settings: GatewaySettings, *, scheduler: SchedulerClient, drain_s: float = DRAIN_S
) -> AsyncIterator[RunningGateway]:
    """Run everything but signals: listeners, workers and watches are up inside, and gone afterwards."""
    store, redis = _open_keys(settings), _open_redis(settings)
    book = QuotaBook(SystemClock(), redis)
    audit = AuditLog(settings.audit_log, SystemClock()) if settings.audit_log else None
    made = MadeKeys(store=store, redis=redis, book=book, clock=SystemClock()) if store and redis else None
    certificate = Certificate.open(settings.tls_cert, settings.tls_key)
    _check_keys(settings)
    listener = _bind_http(settings)
    routes = RouteCache()
    authorizer = Authorizer(
        store, SystemClock(), book, shares_cache=settings.shared_cache, audit=audit, fence=lambda: routes.fence
    )
    templates = TemplatePool(SystemClock(), sender=sender)
    constraints = ConstraintChecks(SystemClock(), sender=sender)
    model_stores = StoreClient("node")
    dispatcher = _make_dispatcher(settings, routes, scheduler)
    service = Service(
        inference=Inference(
            dispatcher=dispatcher,
            prompts=ChatPrompts(templates, template_policy(settings.template)),
            constraints=constraints,
            clock=SystemClock(),
            request_timeout_s=settings.request_timeout_s,
            resumes=settings.resume,
        ),
        scheduler=scheduler,
        stores=ModelStores(scheduler=scheduler, routes=routes, stores=model_stores),
        is_production=settings.production,
        blob_bytes_max=settings.blob_max_bytes,
        version=puna_version(),
        stream_commit_s=settings.stream_commit_s,
        keep_alive_max_ms=_duration_ms("PUNA_KEEP_ALIVE_MAX", settings.keep_alive_max),
        trusts_strangers=is_private_listener(settings.host),
        made_keys=made,
        salt_of=authorizer.salt_of,
        settings=tuple(effective_settings(settings)),
    )
    grpc_server = _bind_grpc(settings, service, authorizer, certificate)
    metrics.QUEUE_LIMIT.set(settings.max_queue)
    metrics.ROUTE_GAUGES.read_from(RouteGauges(dispatcher, SystemClock()).samples)
    await templates.start()
    watches = [
        asyncio.create_task(keep_routes(routes, settings.home.expanduser() / "routes"), name="kept routes"),
        asyncio.create_task(watch_routes(routes, scheduler), name="routes"),
        asyncio.create_task(report_queues(dispatcher, scheduler), name="queues"),
        asyncio.create_task(dispatcher.pool.watch_silence(), name="silence"),
        asyncio.create_task(watch_pressure(PRESSURE), name="pressure"),
    ]
    if store is not None:
        watches.append(asyncio.create_task(store.watch(), name="keys"))
    if made is not None:
        watches.append(asyncio.create_task(made.watch(), name="made keys"))
        watches.append(asyncio.create_task(book.watch(), name="quotas"))
    if redis is not None:
        watches.append(asyncio.create_task(exchange_shares(dispatcher, redis), name="shares"))
    if certificate is not None:
        watches.append(asyncio.create_task(certificate.watch(), name="certificate"))
    server = _http_server(_make_edge(settings, service, authorizer), certificate)
    serving = asyncio.create_task(_serve(server, listener, routes), name="http")
    await _start_grpc(grpc_server)
    host, port = listener.getsockname()[:2]
    try:
        yield RunningGateway(http_address=f"{host}:{port}", grpc_address=grpc_server.address, service=service)
    finally:
        await _drain(service, server, serving, grpc_server, drain_s)
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        await dispatcher.close()
        await model_stores.close()
        await service.hosts.close()
        await templates.stop()
        await constraints.stop()
        await book.all_left()
        if audit is not None:
            await audit.close()
        if redis is not None:
            await redis.close()


async def _serve(server: uvicorn.Server, listener: socket.socket, routes: RouteCache) -> None:
    """Answer HTTP once the routes on disk are read and, if a scheduler answers soon, current. Clients wait."""
    await current_routes(routes)
    await server.serve(sockets=[listener])


async def _drain(
    service: Service, server: uvicorn.Server, serving: asyncio.Task[None], grpc_server: GrpcServer, drain_s: float
) -> None:
    """Take nothing new, let answers end, tell the rest that they are cut, and go."""
    service.draining = True
    server.should_exit = True
    stopping = asyncio.create_task(grpc_server.stop(drain_s), name="grpc stop")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(drain_s):
            await service.all_answered()
    for feed in list(service.feeds):
        feed.end_with(ShuttingDown("the server is shutting down", retry_after_s=1.0))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CUT_S):
            await service.all_answered()
    server.force_exit = True
    await serving
    await grpc_server.server.stop(0)
    await stopping


def _make_dispatcher(settings: GatewaySettings, routes: RouteCache, scheduler: SchedulerClient) -> Dispatcher:
    stall_ms = _duration_ms("PUNA_LOAD_TIMEOUT", settings.load_timeout)
    return Dispatcher(
        routes=routes,
        scheduler=scheduler,
        clock=SystemClock(),
        queue_max=settings.max_queue,
        queue_wait_s=settings.queue_wait_s,
        load_stall_s=stall_ms / MS_PER_S if stall_ms > 0 else None,
    )


def _open_keys(settings: GatewaySettings) -> KeyStore | None:
    return KeyStore.open(Path(settings.api_keys_file).expanduser()) if settings.api_keys_file else None


def _open_redis(settings: GatewaySettings) -> KeyRedis | None:
    """Open the Redis of keys and quotas; without keys it is not used."""
    if not settings.redis_url or not settings.api_keys_file:
        return None
    return KeyRedis(settings.redis_url, any_version=settings.redis_any_version)


def _make_edge(settings: GatewaySettings, service: Service, authorizer: Authorizer) -> Edge:
    origins = {f"http://{settings.host}", *(origin.strip() for origin in settings.origins.split(","))}
    policy = BrowserPolicy(
        loopback_only=is_private_listener(settings.host),
        machine_name=socket.gethostname(),
        origins=origins - {""},
        is_proven=authorizer.asks_for_keys or settings.tls_cert is not None,
    )
    router = Router(make_routes(service))
    return Edge(router=router, policy=policy, authorizer=authorizer, refusals=Refusals(router, authorizer))


def _check_keys(settings: GatewaySettings) -> None:
    """Refuse to serve other machines without keys.

    Raises:
        StartupError: they could reach a listener, and PUNA_OPEN_GATEWAY is not set.
    """
    for listen in (settings.host, settings.grpc_host):
        if not (settings.open_gateway or settings.api_keys_file or is_private_listener(listen)):
            raise StartupError(
                f"{listen} can be reached from other machines; set PUNA_API_KEYS_FILE to ask for keys, "
                "or PUNA_OPEN_GATEWAY=1 to let every client do everything"
            )


def _bind_http(settings: GatewaySettings) -> socket.socket:
    CONNECTIONS.limit = connections_max(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    try:
        host, port = split_host_port(settings.host)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
    except (ValueError, OSError) as error:
        raise StartupError(f"PUNA_HOST: {error}") from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # A client that vanishes keeps its slot for 25 s at most.
    notice_silence(listener, idle_s=5, interval_s=2, unacknowledged_s=15)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise StartupError(f"cannot listen on {settings.host}: {error.strerror}") from error
    listener.setblocking(False)
    return listener


async def _start_grpc(server: GrpcServer) -> None:
    """Serve; clients with client-side health checking ask for the service by its name."""
    await server.start()
    await server.set_serving(True, service=SERVICE_NAME)


def _bind_grpc(
    settings: GatewaySettings, service: Service, authorizer: Authorizer, certificate: Certificate | None
) -> GrpcServer:
    return bind_server(
        settings.grpc_host,
        register=lambda server: inference_pb2_grpc.add_InferenceServicer_to_server(InferenceServicer(service), server),
        services=[SERVICE_NAME],
        interceptors=[KeyInterceptor(authorizer)],
        credentials=certificate.grpc_credentials() if certificate is not None else None,
        audience=Audience.CLIENTS,
    )


class _Server(uvicorn.Server):
    """Signals belong to `common.service`, not to the HTTP server."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def _http_server(app: Edge, certificate: Certificate | None) -> uvicorn.Server:
    # It says each time what strangers do wrong in their framing; that is answered with 400 and no news.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    config = uvicorn.Config(
        app,
        loop="none",
        http=LimitedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=IDLE_CONNECTION_S,
        ssl_context_factory=(lambda _config, _default: certificate.context) if certificate is not None else None,
    )
    return _Server(config)


def _duration_ms(name: str, text: str) -> int:
    try:
        return parse_go_duration_ms(text)
    except ValueError as error:
        raise StartupError(f"{name}: {error}") from error
