"""`python -m runner serve`: load one model and serve it until it is stopped."""

import argparse
import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from google.protobuf import json_format

from common.clock import SystemClock
from common.errors import (
    DeviceMemoryExhausted,
    InsufficientMemory,
    InvalidRequest,
    PunaError,
    RunnerLost,
    StartupError,
)
from common.grpc.server import GrpcServer, bind_server
from common.ids import new_incarnation
from common.metrics_page import serve_metrics
from common.network import UNIX_PREFIX
from common.service import run_service
from common.spec import codecs
from common.telemetry.logs import drain_logs, get_logger
from common.trust.certificates import BadCertificate, KeyPair
from common.trust.identity import HeldIdentity, use_identity
from protos import cluster_pb2, runner_pb2, runner_pb2_grpc
from runner import metrics
from runner.core.sequence.decode_windows import DecodeWindows
from runner.core.sequence.endings import REPEATED_TOKENS_MAX
from runner.core.sequence.slots import SlotPolicy
from runner.core.threads.step_times import LOOK_INTERVAL_S, StepAge
from runner.engine.batched.engine import BatchedEngine
from runner.engine.batched.loop import BatchedOptions
from runner.engine.contract.engine import EngineListener, LoadedModel, LoadProgress, StepReport
from runner.engine.devices.devices import engine_build
from runner.engine.llama.launch import try_header
from runner.engine.opening import EngineOptions, open_engine
from runner.engine.pooled.engine import PooledLlamaEngine
from runner.file_arguments import add_file_arguments, files_of
from runner.prefetch import Prefetch, wanted_files
from runner.serve.compute_threads import ThreadSetting
from runner.serve.converters import memory_to_proto, parse_layout, window_to_proto
from runner.serve.embedding_servicer import PooledService
from runner.serve.embedding_table import EmbeddingTable
from runner.serve.lent_connections import LentConnections, own_servers
from runner.serve.reservation import AllocationRefused, attempted_sizes, check_reservation
from runner.serve.servicer import RunnerServicer
from runner.serve.settings import RunnerSettings
from runner.serve.state_link import StateLink
from runner.serve.status import StatusBoard
from runner.serve.streams import RequestTable, StreamTable

log = get_logger()

SERVICE = runner_pb2.DESCRIPTOR.services_by_name["Runner"].full_name
EXIT_LOAD_FAILED = 3
EXIT_ENGINE_DIED = 70
# How long a failed runner stays up so that its error can be read.
ERROR_SHOWN_S = 5.0
DRAIN_S = 30.0
ENGINE_END_S = 5.0  # the last step, and copies of the states that are not saved
# From the last status to the end of a process whose model is gone.
LAST_WORDS_S = 0.25


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this mode. Everything but --model has a default, for use by hand."""
    add_file_arguments(parser)
    parser.add_argument("--name", default="", help="what people call the model (default: the file's name)")
    parser.add_argument("--digest", default="", help="sha256 of the file")
    parser.add_argument("--placement", default="by-hand", help="placement id")
    parser.add_argument("--generation", default=0, type=int, help="generation of the placement")
    parser.add_argument("--layout", default="{}", help="Layout as proto JSON")
    parser.add_argument("--planned", default="", help="MemoryReport that was measured for the layout, as proto JSON")
    parser.add_argument("--listen", default="127.0.0.1:0", help="gRPC: host:port or unix:/path")
    parser.add_argument("--metrics-listen", default=None, help="Prometheus page: host:port")
    parser.add_argument("--states-listen", default="", help="where the host takes and gives saved states: unix:/path")
    parser.add_argument("--extra", action="store_true", help="be ready for answers of other replicas at once")
    parser.add_argument("--identity-fd", type=int, help="inherited file descriptor of the certificate to show")
    parser.add_argument("--policy", default="best", choices=[policy.value for policy in SlotPolicy])
    parser.add_argument(
        "--repeat-limit", default=REPEATED_TOKENS_MAX, type=int, help="end after so many equal tokens; 0: never"
    )
    parser.add_argument("--no-overlap", action="store_true", help="do the text work of a step before the next one")
    parser.add_argument("--engine-options", default="", help="of the fake engine, as JSON")
    parser.add_argument("--verify", action="store_true", help="check the slots against the engine after every step")


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; 0 after a drain, 1 if it cannot start, 3 if the model cannot be loaded."""
    status = 0

    async def serve(settings: RunnerSettings, stop: asyncio.Event) -> None:
        nonlocal status
        try:
            runner = RunnerProcess(args, settings)
        except InvalidRequest as error:
            raise StartupError(" ".join(error.message.split())) from error
        status = await runner.serve(stop)

    return run_service("runner", RunnerSettings, serve) or status


class Bridge(EngineListener):
    """Carries the engine's reports to a listener on the event loop: one wake-up per step."""

    def __init__(self, loop: asyncio.AbstractEventLoop, listener: EngineListener, *, overlap: bool) -> None:
        """Call the listener on the event loop, apart from `died`, which is called on the engine thread."""
        self._loop = loop
        self._listener = listener
        self._overlap = overlap
        self._last_fraction = -1.0

    def load_progressed(self, progress: LoadProgress) -> None:
        """Pass on whole hundredths; a large model calls thousands of times."""
        if progress.fraction - self._last_fraction >= 0.01 or progress.fraction >= 1.0:
            self._last_fraction = progress.fraction
            self._loop.call_soon_threadsafe(self._listener.load_progressed, progress)

    def loaded(self, model: LoadedModel) -> None:
        """Pass on."""
        self._loop.call_soon_threadsafe(self._listener.loaded, model)

    def load_failed(self, error: PunaError) -> None:
        """Pass on."""
        self._loop.call_soon_threadsafe(self._listener.load_failed, error)

    def stepped(self, report: StepReport) -> None:
        """Pass on; without overlap, wait until the text work is done."""
        if self._overlap:
            self._loop.call_soon_threadsafe(self._listener.stepped, report)
            return
        done = threading.Event()

        def step() -> None:
            try:
                self._listener.stepped(report)
            finally:
                done.set()

        self._loop.call_soon_threadsafe(step)
        done.wait()

    def died(self, error: BaseException) -> None:
        """At once, on this thread: the event loop may be what is stuck."""
        self._listener.died(error)


class RunnerProcess(EngineListener):
    """Wires the engine to the server."""

    def __init__(self, args: argparse.Namespace, settings: RunnerSettings) -> None:
        self._settings = settings
        self._args = args
        self._windows = DecodeWindows()
        layout = self._layout = parse_layout(args.layout)
        self._files = files_of(args)
        self._states = (
            StateLink(args.states_listen.removeprefix(UNIX_PREFIX), self._forget, self._on_engine)
            if args.states_listen
            else None
        )
        header = self._header = try_header(self._files)
        options = _engine_options(args, settings, self._states)
        engine = self._engine = open_engine(self._files, layout, options, header)
        streams = StreamTable(engine)
        # A pooled engine refuses every stream.
        embeddings = EmbeddingTable(engine) if isinstance(engine, PooledLlamaEngine) else None
        self._requests: RequestTable = embeddings or streams
        self._held = streams.held
        if self._states is not None:
            self._held.saved = self._states.saved
        self._threads = ThreadSetting(engine, asked=layout.threads)
        self._board = StatusBoard(SystemClock(), self._requests, self._threads)
        pooled = PooledService(embeddings, self._board) if embeddings is not None else None
        self._planned = _parse_planned(args.planned)
        self._lent = LentConnections(self._server_gone)
        self._prefetch = Prefetch(wanted_files(settings.prefetch, self._files.all))
        info = self._info = runner_pb2.RunnerInfo(
            placement=cluster_pb2.PlacementRef(
                placement_id=args.placement, generation=args.generation, incarnation=new_incarnation()
            ),
            model_name=args.name or args.model.stem,
            model_digest=args.digest,
            layout=cluster_pb2.Layout(),  # resolved once loaded
            engine_build=engine_build(),
        )
        self._servicer = RunnerServicer(self._engine, streams, self._board, info, pooled)
        self._load_ended = asyncio.Event()

    async def serve(self, stop: asyncio.Event) -> int:
        """Listen, say where, load, serve until `stop`, drain; return the exit status."""
        if self._args.identity_fd is not None:
            self._servicer.identity = _take_identity(self._args.identity_fd)
        server = bind_server(
            self._args.listen,
            register=lambda server: runner_pb2_grpc.add_RunnerServicer_to_server(self._servicer, server),
            services=[SERVICE],
            plaintext=self._settings.plaintext,
        )
        metrics_address = serve_metrics(
            self._args.metrics_listen or self._settings.metrics_listen,
            service="runner",
            engine=engine_build(),
            plaintext=self._settings.plaintext,
        )
        await server.set_serving(False)
        await server.server.start()
        self._say_hello(server.address, metrics_address)
        await self._load(Bridge(asyncio.get_running_loop(), self, overlap=not self._args.no_overlap))
        await _first(stop.wait(), self._load_ended.wait())
        if self._load_ended.is_set() and self._board.error is None:
            if self._args.extra and not isinstance(self._engine, PooledLlamaEngine):
                await asyncio.to_thread(self._servicer.constraints.read_vocabulary, self._engine.vocabulary)
            self._board.ready()
            self._lent.watch(own_servers(self._layout))
            await server.set_serving(True)
            await _first(stop.wait(), self._watch_steps())
        status = 0
        if self._board.error is not None:
            await _first(stop.wait(), asyncio.sleep(ERROR_SHOWN_S), self._board.error_told.wait())
            status = EXIT_LOAD_FAILED
        await self._shut_down(server)
        return status

    async def _load(self, bridge: Bridge) -> None:
        """Let the engine load, unless the layout cannot be reserved here."""
        try:
            if self._settings.reserve_check:
                await asyncio.to_thread(
                    check_reservation,
                    self._files,
                    self._layout,
                    self._header,
                    planned=self._planned,
                    count_swap=self._settings.count_swap,
                )
        except AllocationRefused as refused:
            self._refuse(refused.error, refused.attempted)
        else:
            self._prefetch.start()
            if self._states is not None:  # what is saved is known before the first request
                self._states.on_change = partial(asyncio.get_running_loop().call_soon_threadsafe, self._saved_changed)
                self._states.start()
            self._engine.start(bridge)

    def _forget(self, salt: str, done: Callable[[], None]) -> None:
        """Let the engine drop what it holds of a tenant."""
        if isinstance(self._engine, BatchedEngine):
            self._engine.forget(salt, done)
        else:
            done()

    def _saved_changed(self) -> None:
        """Report that the host keeps other states."""
        self._held.saved_changed()
        self._board.changed()

    def _on_engine(self, command: Callable[[], None]) -> None:
        """Call something in the engine's thread."""
        if isinstance(self._engine, BatchedEngine):
            self._engine.call(command)

    async def _shut_down(self, server: GrpcServer) -> None:
        self._lent.close()
        self._board.drain()
        self._prefetch.stop()
        await server.set_serving(False)
        # A second signal ends the drain, not the process: what runs is saved, and its answers go on elsewhere.
        hurried = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, hurried.set)
        await _first(self._requests.idle.wait(), hurried.wait(), asyncio.sleep(DRAIN_S))
        self._engine.stop()
        joined = await asyncio.to_thread(self._engine.join, ENGINE_END_S)
        await server.stop(1.0)
        if self._states is not None:
            await asyncio.to_thread(self._states.close)
        if not joined:
            log.warning("engine.stuck")
            drain_logs()
            os._exit(EXIT_ENGINE_DIED)

    async def _watch_steps(self) -> None:
        """Report an engine thread that is blocked: the host ends the process, which may not be able to end itself."""
        age, clock = StepAge(), SystemClock()
        looked_at_s = clock.now_s()
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            before_s, looked_at_s = looked_at_s, clock.now_s()
            hung_s = age.look(self._engine.step, elapsed_s=looked_at_s - before_s)
            if hung_s or self._board.hung_s:
                self._board.hung_s = hung_s
                self._board.changed()

    def load_progressed(self, progress: LoadProgress) -> None:
        """Show the progress of the load."""
        self._board.progressed(progress)

    def died(self, error: BaseException) -> None:
        """End the process at once, whatever else goes on in it: the engine's state is unknown."""
        log.critical("engine.died", kind=type(error).__name__, text=str(error), exc_info=error)
        drain_logs()
        os._exit(EXIT_ENGINE_DIED)

    def stepped(self, report: StepReport) -> None:
        """Hand a step's outcomes to the requests."""
        try:
            self._requests.apply(report)
            self._see_decode(report)
        except Exception as error:  # noqa: BLE001  # streams would hang silently
            self.died(error)

    def _see_decode(self, report: StepReport) -> None:
        """Add what is news of speed and speculation to the next status: it is not urgent."""
        windows = self._windows
        if report.speculation is not None:
            self._board.speculation = codecs.SPECULATION.to_proto(report.speculation)
        if windows.take(report.lone_steps) and windows.newest is not None and windows.reads is not None:
            self._board.decode_window = window_to_proto(windows.newest, windows.reads, self._info.layout)

    def loaded(self, model: LoadedModel) -> None:
        """Show what was loaded."""
        self._prefetch.stop()
        self._info.layout.CopyFrom(codecs.LAYOUT.to_proto(model.layout))
        self._requests.slots = model.layout.slots
        self._board.batch_tokens = model.layout.batch_tokens
        self._windows.reads = model.reads
        self._threads.loaded(model)
        _show_model(model, self._info)
        if model.memory is not None:
            self._board.memory = memory_to_proto(model.memory)
            self._info.memory.CopyFrom(self._board.memory)
        if model.speculation is not None:
            self._board.speculation = codecs.SPECULATION.to_proto(model.speculation)
        for warning in model.warnings:
            log.warning("model.layout_changed", text=warning)
        self._load_ended.set()
        log.info(
            "model.loaded",
            model=self._args.name,
            slots=model.layout.slots,
            context_tokens=model.slot_context_tokens,
            weights_bytes=model.weights_bytes,
        )

    def _server_gone(self, address: str) -> None:
        """Part of the model is gone with it: the engine would abort at the next request."""
        error = RunnerLost(f"the RPC server {address}, whose devices the model is on, is gone")
        log.critical("engine.server_gone", server=address)
        self._board.failed(error)
        asyncio.get_running_loop().call_later(LAST_WORDS_S, self.died, error)

    def load_failed(self, error: PunaError) -> None:
        """Report the failure, with the sizes of a layout that did not fit."""
        if not isinstance(error, InsufficientMemory | DeviceMemoryExhausted):
            self._refuse(error, None)
            return
        # The engine says that a buffer was refused; how large all of them would have been is counted afterwards.
        counting = asyncio.get_running_loop().run_in_executor(None, attempted_sizes, self._files, self._layout)
        counting.add_done_callback(
            lambda counted: self._refuse(error, None if counted.exception() is not None else counted.result())
        )

    def _refuse(self, error: PunaError, attempted: cluster_pb2.MemoryReport | None) -> None:
        self._prefetch.stop()
        log.error("model.load_failed", model=self._args.name, reason=error.reason, text=error.message)
        self._board.failed(error, attempted)
        self._load_ended.set()

    def _say_hello(self, address: str, metrics_address: str) -> None:
        """Print one line for the parent process, then nothing: the pipe may have no reader any more."""
        hello = {
            "address": address,
            "metrics_address": metrics_address,
            "pid": os.getpid(),
            "incarnation": self._info.placement.incarnation,
        }
        print(json.dumps(hello), flush=True)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, sys.stdout.fileno())
        os.close(quiet)


def _take_identity(descriptor: int) -> HeldIdentity:
    """Read the certificate that the host passes, and show it from now on.

    Raises:
        StartupError: it cannot be used.
    """
    with os.fdopen(descriptor, "rb") as file:
        given = runner_pb2.RunnerIdentity.FromString(file.read())
    try:
        identity = HeldIdentity(given.authorities, KeyPair(given.certificate, given.key))
    except BadCertificate as error:
        raise StartupError(f"the certificate from the host cannot be used: {error}") from error
    use_identity(identity)
    return identity


def _parse_planned(text: str) -> cluster_pb2.MemoryReport | None:
    """Parse the host's measurement; invalid text is ignored, since the runner can count itself."""
    try:
        return json_format.Parse(text, cluster_pb2.MemoryReport()) if text else None
    except json_format.ParseError as error:
        log.warning("runner.planned_unreadable", text=str(error))
        return None


def _engine_options(args: argparse.Namespace, settings: RunnerSettings, states: StateLink | None) -> EngineOptions:
    return EngineOptions(
        setting=settings.engine,
        batched=BatchedOptions(
            policy=SlotPolicy(args.policy),
            overlap=not args.no_overlap,
            verify=args.verify,
            repeats_max=args.repeat_limit,
            states=states,
            state_facts={"digest": args.digest},
        ),
        test=args.engine_options or settings.engine_options,
    )


async def _first(*awaitables: Coroutine[Any, Any, object]) -> None:
    """Wait until one of several is done; the others are cancelled."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _show_model(model: LoadedModel, info: runner_pb2.RunnerInfo) -> None:
    """Set the metrics that stay until the process ends."""
    metrics.SLOTS.set(model.layout.slots)
    metrics.KV_CELLS.set(model.layout.slots * model.slot_context_tokens)
    placement = info.placement
    metrics.INFO.labels(info.model_name, info.model_digest, placement.placement_id, placement.generation).set(1)
    if model.memory is None:
        return
    for device_id, held in (*model.memory.devices, ("host", model.memory.host)):
        sizes = (held.weights_bytes, held.cache_bytes, held.graph_bytes, held.projector_bytes)
        for kind, size in zip(("weights", "cache", "graph", "projector"), sizes, strict=True):
            metrics.MEMORY_BYTES.labels(device_id, kind).set(size)
