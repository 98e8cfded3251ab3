"""The life of a service process: start, run until a signal, stop; failures to start in one line.

The lag of its event loop is measured all the while: a delay of a tenth of a second delays every stream.
"""

import asyncio
import gc
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from common.errors import StartupError
from common.ollama_environment import without_meaning
from common.settings import REPLACED, PunaSettings
from common.telemetry.logs import configure_logs, drain_logs, get_logger
from common.telemetry.metrics import LOOP_LAG, LOOP_TASKS
from common.telemetry.tracing import start_tracing, stop_tracing
from common.trust.identity import Identity, use_identity

log = get_logger()

# Short against what people notice, long against what it costs.
LOOK_INTERVAL_S = 0.2
# After a signal, what a service waits for is logged as often: it may be killed soon.
SLOW_STOP_S = 8.0
OPEN_FILES_WANTED = 65_536

_WAITS_MAX = 50
_FRAMES = ("cr_frame", "ag_frame", "gi_frame")
_AWAITED = ("cr_await", "ag_await", "gi_yieldfrom")

S = TypeVar("S", bound=PunaSettings)


def run_service(name: str, settings_type: type[S], serve: Callable[[S, asyncio.Event], Awaitable[None]]) -> int:
    """Run `serve(settings, stop)` until it returns; `stop` is set at SIGTERM or SIGINT, a second one ends the process.

    Returns the exit status: 0 after an orderly stop, 1 when the process could not start.
    """
    gc.enable()  # see `common.telemetry.quick_start`
    try:
        settings = settings_type.load()
        configure_logs(service=name, debug=settings.debug)
        raise_open_files()
        if settings.trust is not None:
            use_identity(Identity(settings.trust))
        _tell_of_ollama(settings_type)
        _warn_of_consents(settings)
        start_tracing(name)
        try:
            uvloop.run(_until_stopped(serve, settings))
        finally:
            stop_tracing()
    except StartupError as error:
        drain_logs()  # the reason is the last line
        print(f"puna {name}: {error}", file=sys.stderr)
        return 1
    return 0


def raise_open_files() -> None:
    """Raise the limit of open files as far as this user may: the usual one is that of programs that use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _tell_of_ollama(settings_type: type[PunaSettings]) -> None:
    """Log the source of each value that Ollama's variables gave, and the names that have no effect here."""
    for name, value in settings_type.taken_over().items():
        log.info("setting.from_ollama", setting=name, value=value)
    ignored = without_meaning(os.environ)
    if ignored:
        log.info("settings.of_ollama_ignored", names=ignored)


def _warn_of_consents(settings: PunaSettings) -> None:
    """Log that connections have no TLS, and settings that have another name now."""
    for name in REPLACED.keys() & os.environ.keys():
        log.warning("setting.deprecated", setting=name, use=REPLACED[name])
    if settings.plaintext:
        log.warning("plaintext.allowed", text="other machines can read prompts and command nodes; use PUNA_TRUST")


async def _until_stopped(serve: Callable[[S, asyncio.Event], Awaitable[None]], settings: S) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: int) -> None:
        if stop.is_set():
            sys.exit(128 + number)
        log.info("service.stopping", signal=signal.Signals(number).name)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    watching = [
        asyncio.create_task(watch_loop(), name="loop lag"),
        asyncio.create_task(watch_stop(stop), name="slow stop"),
    ]
    try:
        await serve(settings, stop)
    finally:
        for watch in watching:
            watch.cancel()
    log.info("service.stopped")


async def watch_stop(stop: asyncio.Event, interval_s: float = SLOW_STOP_S) -> None:
    """Log what the tasks of a service wait for while it stops; runs for ever."""
    await stop.wait()
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while True:
        await asyncio.sleep(interval_s)
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        waits = sorted(f"{task.get_name()}: {' > '.join(_places(task.get_coro()))}" for task in tasks)
        log.warning("service.stops_slowly", after_s=round(loop.time() - began_s, 1), waits=waits[:_WAITS_MAX])


def _places(suspended: Any) -> Iterator[str]:
    """Yield where a coroutine or generator stands, and what it waits for, the outermost first."""
    while suspended is not None:
        frame, suspended = _first(suspended, _FRAMES), _first(suspended, _AWAITED)
        if frame is not None:
            yield f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}:{frame.f_lineno}"
            manager = frame.f_locals.get("self")
            if isinstance(manager, AbstractAsyncContextManager):
                # Its generator is behind an object that shows nothing.
                suspended = getattr(manager, "gen", suspended)


def _first(suspended: Any, names: Iterable[str]) -> Any:
    return next((found for name in names if (found := getattr(suspended, name, None)) is not None), None)


async def watch_loop(interval_s: float = LOOK_INTERVAL_S) -> None:
    """Measure the running loop; runs for ever."""
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + interval_s
        await asyncio.sleep(interval_s)
        LOOP_LAG.observe(max(0.0, loop.time() - due_s))
        LOOP_TASKS.set(len(asyncio.all_tasks(loop)))
