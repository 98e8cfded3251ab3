"""`puna up` and `puna down`: bring a cluster up in a home, keep it up, and take it down from another terminal."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cli.cluster.certificates import prepare_certificates
from cli.cluster.demo import MODEL, install_demo
from cli.cluster.enrolment import keep_certificate
from cli.cluster.home import (
    ClusterRecord,
    Home,
    HomeInUse,
    ServiceRecord,
    StateFile,
    home_lock,
    is_locked,
    prepare_home,
    read_record,
    real_home,
    remove_record,
    remove_short_path,
    set_aside_files,
    sockets,
    with_short_path,
)
from cli.cluster.joining import check_own_address, renew_certificates, wait_for_discovery
from cli.cluster.log_files import keep_logs_short, rotate_log
from cli.cluster.plan import Addresses, UpRequest, plan_addresses, plan_services
from cli.cluster.process_table import (
    become_subreaper,
    end_descendants,
    end_processes_of,
    end_services_of,
    read_process,
    reap_orphans,
    send_signal,
)
from cli.cluster.readiness import model_is_listed
from cli.cluster.service import ServiceDied, Supervisor, first_of
from cli.cluster.zygote import ServiceZygote
from cli.errors import CommandFailed
from common.audit.acts import ActLog
from common.network import is_taken
from common.trust.authority import Authority
from common.trust.identity import Identity, use_identity
from common.trust.roles import Role
from common.trust.tokens import JoinTokens
from common.version import puna_version

# The sum of what the services may take, and what is left behind after them.
_STOPPED_WITHIN_S = 70.0
_LOOK_INTERVAL_S = 0.1
_QUESTION = '{"model": "demo", "stream": false, "messages": [{"role": "user", "content": "What is Puna?"}]}'
_MODEL_LISTED_WITHIN_S = 30.0
# Set by the Makefile: other machines are shown how to join by make, too.
MADE = "_PUNA_MADE"
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def bring_up(
    request: UpRequest, *, say: Callable[[str], None], warn: Callable[[str], None], zygote: ServiceZygote | None = None
) -> None:
    """Run a cluster until a signal asks it to stop. Services are forked from `zygote`.

    Raises:
        CommandFailed: it cannot start; nothing is left running.
        StartupError: as CommandFailed.
    """
    home = prepare_home(request.home)
    try:
        with home_lock(home.real):
            become_subreaper()
            try:
                asyncio.run(_run(with_short_path(home), request, say, warn, zygote))
            finally:
                _tidy(home)
    except HomeInUse:
        record = read_record(home.real)
        who = f": puna runs there ({_what(record)}, pid {record.pid})" if record is not None else ""
        raise CommandFailed(f"{_taken(request) or home.real} is already in use{who}") from None


def _what(record: ClusterRecord) -> str:
    return record.http_url if record.http_address else f"a host of {record.discovery_address}"


def _taken(request: UpRequest) -> str | None:
    """Return the address that another process listens on, or None."""
    if request.joined:
        return None
    return next((address for address in (request.http, request.grpc) if is_taken(address)), None)


async def _run(
    home: Home,
    request: UpRequest,
    say: Callable[[str], None],
    warn: Callable[[str], None],
    zygote: ServiceZygote | None,
) -> None:
    stop, hurry = asyncio.Event(), asyncio.Event()
    _listen_to_signals(stop, hurry, say)
    if (earlier := read_record(home.real)) is not None:
        await end_services_of(earlier)
    if (address := _taken(request)) is not None:
        raise CommandFailed(f"{address} is already in use")
    if request.opened:
        check_own_address(request.opened)
    request = await prepare_certificates(home, request, say)
    _show_identity(request)
    if request.joined:
        await wait_for_discovery(request.joined, request.identity(Role.NODE))
    addresses = plan_addresses(home, request)
    models = request.models or home.models
    wants_demo = request.models is None and not request.joined
    has_demo = wants_demo and install_demo(models, record=home.real / "demo.sha256")
    specs = plan_services(home, addresses, models=models, inherited=os.environ)
    for spec in specs:
        rotate_log(spec.log)
    record = _new_record(home, addresses)
    state = StateFile(home.real, lambda: _with_services(record, supervisor), warn)
    supervisor = Supervisor(specs, say=warn, changed=state.write, zygote=zygote)
    state.write()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGCHLD, lambda: reap_orphans(supervisor.pids()))
    chores = [
        asyncio.create_task(keep_logs_short([spec.log for spec in specs], warn)),
        asyncio.create_task(state.keep_written()),
        asyncio.create_task(_renewal(request, home.acts, warn)),
    ]
    try:
        say(f"Starting Puna in {home.real} (logs in {home.logs})")
        if await _finished_before(stop, supervisor.start()):
            record = replace(record, ready=True)
            state.write()
            _name_set_aside(home, warn)
            listed = has_demo and await _is_listed(addresses, stop)
            if not stop.is_set():
                banner = ready_banner(models, addresses, demo=listed, join=_join_commands(request, home.acts))
                say(joined_banner(addresses) if request.joined else banner)
                await stop.wait()
    except ServiceDied as error:
        raise CommandFailed(str(error)) from None
    finally:
        for chore in chores:
            chore.cancel()
        await supervisor.stop(hurry)
        loop.remove_signal_handler(signal.SIGCHLD)
        await end_descendants(hurry)


def _name_set_aside(home: Home, warn: Callable[[str], None]) -> None:
    for path in set_aside_files(home.real):
        warn(f"{path} could not be read and was set aside")


def _show_identity(request: UpRequest) -> None:
    own = request.identity(Role.NODE if request.joined else Role.OPERATOR)
    if own is not None:
        use_identity(Identity(own))


async def _renewal(request: UpRequest, acts: ActLog, warn: Callable[[str], None]) -> None:
    own = request.identity(Role.NODE) if request.joined else None
    if own is not None and not Authority(own.parents[1]).exists:
        await keep_certificate(request.joined, own, warn)
    else:
        await renew_certificates(request.trust, acts, warn)


def _join_commands(request: UpRequest, acts: ActLog) -> list[str]:
    """Return the lines by which another machine joins, with a token where this one has the authority."""
    if not request.opened or request.joined:
        return []
    token = ""
    if request.trust is not None and (authority := Authority(request.trust, acts=acts)).exists:
        token = str(JoinTokens(authority).create())
    made = f"make up JOIN={request.opened}" + (f" TOKEN={token}" if token else "")
    return [
        f"puna up --join {request.opened}" + (f" --token {token}" if token else ""),
        *([made] if MADE in os.environ else []),
    ]


def _listen_to_signals(stop: asyncio.Event, hurry: asyncio.Event, say: Callable[[str], None]) -> None:
    """Handle signals: the first one stops in order, the second at once."""

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            hurry.set()
        else:
            say(f"\nStopping ({number.name}); once more to stop at once")
        stop.set()

    for number in _STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)


async def _finished_before(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do the work unless asked to stop first. True if it was done; its errors pass."""
    task = asyncio.create_task(work)
    try:
        await first_of(task, stop)
        if task.done():
            task.result()
        return task.done()
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _is_listed(addresses: Addresses, stop: asyncio.Event) -> bool:
    """Wait a while for the demo model. A file that the user broke must not keep the cluster from starting."""
    try:
        async with asyncio.timeout(_MODEL_LISTED_WITHIN_S):
            return await _finished_before(stop, model_is_listed(addresses.base_url, MODEL))
    except TimeoutError:
        return False


def _tidy(home: Home) -> None:
    """Leave no socket and no claim that something runs."""
    for path in sockets(home):
        path.unlink(missing_ok=True)
    remove_record(home.real)
    remove_short_path(home)


def _new_record(home: Home, addresses: Addresses) -> ClusterRecord:
    me = read_process(os.getpid())
    assert me is not None, "this process is in the table"
    return ClusterRecord(
        pid=me.pid,
        start_ticks=me.start_ticks,
        version=puna_version(),
        started_at_unix_s=time.time(),
        http_address="" if addresses.request.joined else addresses.request.http,
        grpc_address=addresses.request.grpc,
        discovery_address=addresses.discovery,
        scheduler_address=addresses.scheduler,
        redis_url=addresses.redis_url,
        home=str(home.real),
        run=str(home.run),
        tls=addresses.request.tls,
    )


def _with_services(record: ClusterRecord, supervisor: Supervisor) -> ClusterRecord:
    return replace(
        record,
        services={
            name: ServiceRecord(
                state=service.state,
                pid=service.child.pid if service.child else None,
                start_ticks=service.entry.start_ticks if service.child and service.entry else None,
                restarts=service.restarts.deaths_total,
                metrics_address=service.environment.get("PUNA_METRICS_LISTEN"),
                log=str(service.spec.log),
            )
            for name, service in supervisor.services.items()
        },
    )


def ready_banner(models: Path, addresses: Addresses, *, demo: bool, join: Sequence[str] = ()) -> str:
    """Return the banner of a machine with a gateway. `demo`: the demo model can be asked; `join`: on other machines."""
    url = addresses.base_url
    body = f" -d '{_QUESTION}'" if demo else ""
    lines = [
        "",
        f"Puna {puna_version()} is ready",
        f"  Ollama     {url}",
        f"  OpenAI     {url}/v1",
        f"  Anthropic  {url}",
        f"  gRPC       {addresses.request.grpc}  (puna.v1.Inference)",
        f"  page       {url}/ui",
        f"  models     {models}/*.gguf",
        *(f"  join       {command}" for command in join),
        "",
        f"Try      curl {url}/api/{'chat' if demo else 'tags'}{body}",
        "Connect  puna connect claude-code  (all clients: puna connect)",
        "",
        "Ctrl-C stops everything.",
    ]
    return "\n".join(lines)


def joined_banner(addresses: Addresses) -> str:
    """Return the banner of a machine that only runs a host."""
    return "\n".join(
        [
            "",
            f"Puna {puna_version()}: this machine is a node of the cluster at {addresses.discovery}",
            f"  host  {addresses.node}",
            "",
            "Ctrl-C takes it out again.",
        ]
    )


def take_down(home_directory: Path, *, say: Callable[[str], None]) -> None:
    """Stop the supervisor; without one, end what a killed one may have left.

    Raises:
        CommandFailed: it does not stop.
    """
    real = real_home(home_directory)
    home = Home(real=real, path=real)
    if not (real / "run").is_dir():
        say(f"nothing runs in {real}")
        return
    if is_locked(real):
        _stop_supervisor(home)
        say(f"stopped the cluster in {real}")
        return
    ended = asyncio.run(end_processes_of(home))
    _tidy(home)
    say(f"ended {ended} processes that were left in {real}" if ended else f"nothing runs in {real}")


def _stop_supervisor(home: Home) -> None:
    record = read_record(home.real)
    if record is None:
        raise CommandFailed(f"{home.real} is in use, but does not say by whom; try again in a moment")
    send_signal(record.pid, record.start_ticks, signal.SIGTERM)
    deadline_s = time.monotonic() + _STOPPED_WITHIN_S
    while is_locked(home.real):
        if time.monotonic() > deadline_s:
            raise CommandFailed(f"the cluster in {home.real} (pid {record.pid}) does not stop")
        time.sleep(_LOOK_INTERVAL_S)
