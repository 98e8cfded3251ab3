"""One run of a scenario: builds the cluster, lets the steps happen, heals everything, and looks at what is left."""

import asyncio
import logging
import random
import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import structlog

import runner.engine.batched.loop
import runner.engine.batched.sequence
from common.closing import closing
from common.errors import PunaError, RequestQuarantined
from gateway.answers.inference import _body
from gateway.answers.record import RequestRecord
from gateway.core.dispatch.resume import poison_name
from gateway.core.request.answers import AnswerRequest, Delta, Dialect, Done, RawPrompt
from gateway.keys.visits import cache_salt
from scheduler.core.values.policy import Policy
from tests.simulation.cluster.checks import Checks, Violation
from tests.simulation.cluster.discovery_process import SimDiscovery
from tests.simulation.cluster.gateway_process import SimGateway
from tests.simulation.cluster.network import Network, Process
from tests.simulation.cluster.node import Node, SimHost, SimModel
from tests.simulation.cluster.runner_process import VOCABULARY, Pace, RunnerProcess, expected_answer
from tests.simulation.cluster.scenario import Scenario, Step
from tests.simulation.cluster.scheduler_process import SimRedis, SimScheduler
from tests.simulation.cluster.virtual_time import VirtualClock, VirtualLoop, run

POISON_SEED = 1 << 40  # seeds from here on end their runner
WARM_S = 3.0  # hosts register, a scheduler leads
SETTLE_S = 700.0  # beyond the longest deadline of a request
QUIET_S = 20.0  # beyond the longest interval of a report


@dataclass(slots=True, eq=False)
class Asked:
    """A client's request and what came of it."""

    number: int
    prompt: tuple[int, ...]
    max_tokens: int
    seed: int
    gateway: SimGateway
    expected: list[int]  # the undisturbed answer
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    done: Done | None = None
    outcome: str = ""  # "done", the reason of an error, or the reason why it was given up
    task: asyncio.Task[Any] | None = None


@dataclass(slots=True)
class Result:
    """Outcome of an episode."""

    events: int
    outcomes: Counter[str]
    happened: Counter[str]
    resumes: int
    trace: int  # equal for equal runs
    violation: str = ""


class Episode:
    """A cluster and its clients."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.loop = VirtualLoop()
        self.network = Network(self.loop, scenario.seed)
        self.happened: Counter[str] = Counter()
        self.asked: list[Asked] = []
        self.trace = 0
        plan = scenario.plan
        self.models = tuple(SimModel(name=f"m{index}:latest", size_gib=size) for index, size in enumerate(plan.models))
        self.checks = Checks(self)
        self.nodes = {
            f"n{index}": Node(
                id=f"n{index}", gpu_gib=gpu, ram_gib=ram, network=self.network, models=self.models, pace=Pace(),
                poison_seed=POISON_SEED, on_obey=self.checks.on_obey, on_start=self.checks.on_start,
                on_stop=self.checks.on_stop, on_poisoned=self.checks.on_poisoned,
            )
            for index, (gpu, ram) in enumerate(plan.nodes)
        }  # fmt: skip
        self.hosts: dict[str, SimHost] = {}
        self.schedulers: dict[str, SimScheduler] = {}
        self.gateways: dict[str, SimGateway] = {}
        self.discovery: SimDiscovery | None = None
        self.redis: SimRedis | None = None
        self._lives: Counter[str] = Counter()
        self._world = Process(self.network, "world", "world")

    def run(self) -> Result:
        """Play the scenario."""
        random.seed(self.scenario.seed)
        violation = ""
        clock: Any = VirtualClock(self.loop)
        modules: list[Any] = [runner.engine.batched.loop, runner.engine.batched.sequence]
        real = [module.time for module in modules]
        for module in modules:
            module.time = clock
        with _quiet():
            try:
                run(self.loop, self._play())
            except Violation as error:
                violation = str(error)
            except AssertionError as error:
                violation = f"{type(error).__name__}: {error}"
            finally:
                for module, time in zip(modules, real, strict=True):
                    module.time = time
        return Result(
            events=self.network.events,
            outcomes=Counter(one.outcome for one in self.asked),
            happened=self.happened,
            resumes=sum(one.done.resumes for one in self.asked if one.done is not None),
            trace=self.trace,
            violation=violation,
        )

    async def _play(self) -> None:
        plan = self.scenario.plan
        self._start_redis()
        self._start_discovery()
        for index in range(plan.schedulers):
            self._start_scheduler(f"s{index}")
        for name in self.nodes:
            self._start_host(name)
        for index in range(plan.gateways):
            self._start_gateway(f"g{index}")
        await asyncio.sleep(WARM_S)
        begin_s = self.loop.time()
        watch = self._world.spawn(self.checks.watch(), "checks")
        for step in self.scenario.steps:
            await asyncio.sleep(max(0.0, begin_s + step.at_s - self.loop.time()))
            self._raise_bugs(watch)
            getattr(self, f"_{step.kind}")(step)
        await asyncio.sleep(max(0.0, begin_s + plan.seconds - self.loop.time()))
        self._heal()
        until_s = self.loop.time() + SETTLE_S
        while any(not one.outcome for one in self.asked) and self.loop.time() < until_s:
            await asyncio.sleep(1.0)
            self._raise_bugs(watch)
        await asyncio.sleep(QUIET_S)
        self._raise_bugs(watch)
        self.checks.at_end()

    def _raise_bugs(self, watch: "asyncio.Task[Any]") -> None:
        if watch.done() and not watch.cancelled():
            watch.result()
        if self.network.bugs:
            bug = self.network.bugs[0]
            raise Violation(f"a task ended with {type(bug).__name__}: {bug}") from bug

    # Processes.

    def _start_redis(self, known: SimRedis | None = None) -> None:
        self.redis = SimRedis(self.network)
        if known is not None:  # it has written everything down
            self.redis.desired, self.redis.margins, self.redis.fence = known.desired, known.margins, known.fence
            self.redis.holder, self.redis.until_s = known.holder, known.until_s

    def _start_discovery(self) -> None:
        self.discovery = SimDiscovery(self.network)

    def _start_scheduler(self, name: str) -> None:
        self._lives[name] += 1
        rate = random.Random(f"{self.scenario.seed} {name} clock").choice([0.9, 1.0, 1.0, 1.1])
        policy = Policy(
            context_tokens=512, num_parallel=self.scenario.plan.slots, keep_alive_ms=30_000, load_stall_s=60.0,
            pipeline_backends=frozenset(),
        )  # fmt: skip
        self.schedulers[name] = SimScheduler(
            self.network, name, self._lives[name], policy, rate=rate, find_redis=lambda: self.redis,
            find_discovery=lambda: self.discovery, find_host=self.hosts.get, find_runner=self._find_runner,
            on_handled=self.checks.on_handled,
        )  # fmt: skip

    def _start_host(self, name: str) -> None:
        self._lives[name] += 1
        self.hosts[name] = SimHost(self.nodes[name], self._lives[name], lambda: self.discovery)

    def _start_gateway(self, name: str) -> None:
        self._lives[name] += 1
        self.gateways[name] = SimGateway(
            self.network, name, self._lives[name], find_schedulers=lambda: list(self.schedulers.values()),
            find_runner=self._find_runner,
        )  # fmt: skip

    def _find_runner(self, address: str) -> RunnerProcess | None:
        for node in self.nodes.values():
            for one in node.runners.values():
                if one.record.address == address:
                    return one
        return None

    def runners(self) -> list[RunnerProcess]:
        """List the live runners of all nodes."""
        return [one for node in self.nodes.values() for one in node.live()]

    def note(self, *what: object) -> None:
        """Add to the trace, which two runs of one scenario must share."""
        self.trace = zlib.crc32(f"{self.loop.time():.9f} {what}".encode(), self.trace)

    # Steps.

    def _request(self, step: Step) -> None:
        which, popular, prompt_seed, length, max_tokens, branch, is_poison = step.numbers
        gateways = list(self.gateways.values())
        if not gateways:
            return
        gateway = gateways[int(which * len(gateways))]
        model = self.models[int(popular * len(self.models))]
        rng = random.Random(int(prompt_seed) % 7 if branch < 0.5 else prompt_seed)  # half of them begin alike
        prompt = tuple(rng.randrange(1, VOCABULARY) for _ in range(int(length)))
        if branch < 0.5:
            prompt = (*prompt, 1 + int(prompt_seed) % (VOCABULARY - 1))
        number = len(self.asked)
        seed = POISON_SEED + number if is_poison else number
        expected = expected_answer(prompt, int(max_tokens))
        asked = Asked(number, prompt, int(max_tokens), seed, gateway, expected)
        self.asked.append(asked)
        asked.task = gateway.spawn(self._client(asked, model.name, speculates=branch > 0.8), f"request {number}")
        asked.task.add_done_callback(lambda _: self._left(asked))

    def _left(self, asked: Asked) -> None:
        """Note a request whose task was cancelled before it ran."""
        asked.outcome = asked.outcome or "left"

    async def _client(self, asked: Asked, model: str, *, speculates: bool) -> None:
        options = {"temperature": 0.0, "seed": asked.seed, "num_predict": asked.max_tokens}
        request = AnswerRequest(
            dialect=Dialect.OPENAI,
            model=model,
            prompt=RawPrompt(token_ids=asked.prompt),
            options={**options, "speculative": "on" if speculates else "off"},
        )
        record = RequestRecord(dialect=Dialect.OPENAI, route="", clock=asked.gateway.clock)
        try:
            async with closing(asked.gateway.inference.answer(request, record)) as events:
                async for event in events:
                    if asked.done is not None:
                        raise Violation(f"request {asked.number}: an event after Done: {event}")
                    if isinstance(event, Delta):
                        asked.tokens += [token.id for token in event.tokens]
                        asked.text += event.content
                        self.checks.on_tokens(asked)
                    elif isinstance(event, Done):
                        asked.done = event
            if asked.done is None:
                raise Violation(f"request {asked.number}: the stream ended without Done")
            asked.outcome = "done"
            self.checks.on_done(asked)
        except RequestQuarantined as error:
            asked.outcome = error.reason
            blamed = dict(asked.gateway.dispatcher.pool.poisoned.known())[
                poison_name(_body(request), salt=cache_salt())
            ]
            self.checks.on_quarantined(asked, [replica.key for replica in blamed])
        except PunaError as error:
            asked.outcome = error.reason
        except asyncio.CancelledError:
            asked.outcome = "left" if asked.gateway.alive else "gateway gone"
            raise
        finally:
            self.note(asked.number, asked.outcome, len(asked.tokens))

    def _client_leaves(self, step: Step) -> None:
        running = [one for one in self.asked if not one.outcome]
        if running:
            task = running[int(step.numbers[0] * len(running))].task
            assert task is not None
            task.cancel()
            self.happened[step.kind] += 1

    def _kill_runner(self, step: Step) -> None:
        if runners := self.runners():
            self._chosen(runners, step).kill()

    def _pause_runner(self, step: Step) -> None:
        if runners := self.runners():
            self._pause(self._chosen(runners, step), step)

    def _kill_host(self, step: Step) -> None:
        if self.hosts:
            name = self._chosen(list(self.hosts), step)
            self.hosts.pop(name).kill()
            self._later(step, lambda: self._start_host(name))

    def _kill_node(self, step: Step) -> None:
        if len(self.hosts) > 1:
            name = self._chosen(list(self.hosts), step)
            self.hosts.pop(name).kill()
            for one in self.nodes[name].live():
                one.kill()
            self.nodes[name].runners.clear()
            self._later(step, lambda: self._start_host(name))

    def _kill_gateway(self, step: Step) -> None:
        if len(self.gateways) > 1:
            name = self._chosen(list(self.gateways), step)
            self.gateways.pop(name).kill()
            self._later(step, lambda: self._start_gateway(name))

    def _kill_scheduler(self, step: Step) -> None:
        if self.schedulers:
            name = self._chosen(list(self.schedulers), step)
            self.schedulers.pop(name).kill()
            self._later(step, lambda: self._start_scheduler(name))

    def _pause_scheduler(self, step: Step) -> None:
        if self.schedulers:
            self._pause(self._chosen(list(self.schedulers.values()), step), step)

    def _kill_discovery(self, step: Step) -> None:
        if self.discovery is not None:
            self.discovery.kill()
            self.discovery = None
            self.happened[step.kind] += 1
            self._later(step, self._start_discovery)

    def _kill_redis(self, step: Step) -> None:
        if (redis := self.redis) is not None:
            redis.kill()
            self.redis = None
            self.happened[step.kind] += 1
            self._later(step, lambda: self._start_redis(redis))

    def _flush_redis(self, step: Step) -> None:
        if self.redis is not None:
            self.redis.flush()
            self.happened[step.kind] += 1

    def _cut(self, step: Step) -> None:
        places = [*self.nodes, *self.gateways, *self.schedulers, "discovery", "redis"]
        first = self._chosen(places, step)
        second = places[int(step.numbers[1] * len(places))]
        if first != second:
            self.network.cut(first, second)
            if step.numbers[3] < 0.7:
                self.network.cut(second, first)
            self._later(step, self.network.heal)

    def _isolate_leader(self, step: Step) -> None:
        """Cut the leader off the store, or in one direction off the nodes: its commands arrive late."""
        leaders = [name for name, one in self.schedulers.items() if one.leadership.fence]
        if not leaders:
            return
        leader = self._chosen(leaders, step)
        if step.numbers[3] < 0.5:
            for name in self.nodes:
                self.network.cut(leader, name)
        else:
            self.network.cut(leader, "redis")
            self.network.cut("redis", leader)
        self._later(step, self.network.heal)

    def _loss(self, step: Step) -> None:
        self.network.loss = 0.3 * step.numbers[0]
        self.happened[step.kind] += 1
        self._later(step, lambda: setattr(self.network, "loss", 0.0))

    def _clock(self, step: Step) -> None:
        processes: list[Process] = [*self.hosts.values(), *self.schedulers.values(), *self.gateways.values()]
        if self.redis is not None:
            processes.append(self.redis)
        self._chosen(processes, step).clock.wall_offset_s = (step.numbers[1] - 0.5) * 7200

    def _pause(self, process: Process, step: Step) -> None:
        process.pause()
        self._later(step, process.resume)

    def _chosen(self, those: list[Any], step: Step) -> Any:
        self.happened[step.kind] += 1
        return those[int(step.numbers[0] * len(those))]

    def _later(self, step: Step, act: Any) -> None:
        async def work() -> None:
            await asyncio.sleep(step.numbers[2])
            act()

        self._world.spawn(work(), "heals")

    def _heal(self) -> None:
        self.network.heal()
        self.network.loss = 0.0


class _quiet:  # noqa: N801  # a context manager
    """Log nothing: millions of lines."""

    def __enter__(self) -> None:
        self._before = structlog.get_config()["wrapper_class"]
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))

    def __exit__(self, *_: object) -> None:
        structlog.configure(wrapper_class=self._before)
