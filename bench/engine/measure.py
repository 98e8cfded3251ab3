"""One round after the other, of both servers in turn."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.engine.cases import Case, Kind, ModelPlan, asks, embedding_inputs, server_order
from bench.engine.figures import Cost, Round, equal_share, stream_figures, vector_figures
from bench.engine.models import frame_tokens, vocabulary_size
from bench.engine.processes import peak_resident_bytes, process_cpu_s
from bench.engine.servers import (
    OURS,
    PEER,
    LlamaServer,
    RunnerServer,
    Server,
    Sizes,
    StepCounts,
    running_llama_server,
    running_runner,
)
from bench.engine.streams import BadAnswer, TokenStream
from bench.machine import load_average

# llama-server goes on behind the limit until a character is whole.
EXTRA_TOKENS_MAX = 4
WARM_UP_ROUND = -1


@dataclass(slots=True, kw_only=True)
class Measurement:
    """Everything about one model."""

    rounds: list[Round] = field(default_factory=list)
    servers: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class PairedRound:
    """One round of both servers."""

    rounds: list[Round]
    streams: dict[str, list[TokenStream]]


class BothServers:
    """Our runner and llama-server with one model."""

    def __init__(self, *, ours: RunnerServer, peer: LlamaServer, model: Path) -> None:
        self.ours = ours
        self.peer = peer
        self.vocabulary_size = vocabulary_size(model)
        self._model = model

    def by_name(self, name: str) -> Server:
        """One of the two."""
        return self.ours if name == OURS else self.peer

    async def warm_up(self, plan: ModelPlan) -> None:
        """Each case once, uncounted, so that nothing in a counted round happens for the first time."""
        for case in plan.cases:
            for server in (self.ours, self.peer):
                if case.kind is Kind.STREAMS and not case.grammar and case.streams < 16:
                    await server.generate(asks(case, round_number=WARM_UP_ROUND, vocabulary_size=self.vocabulary_size))
                elif case.kind is Kind.EMBEDDINGS:
                    await server.embed(self.inputs(case, WARM_UP_ROUND)[:4])

    def inputs(self, case: Case, number: int) -> list[tuple[int, ...]]:
        """Of an embedding request."""
        begin, end = frame_tokens(self._model)
        return embedding_inputs(case, round_number=number, vocabulary_size=self.vocabulary_size, begin=begin, end=end)

    def memory_rounds(self, model_name: str) -> list[Round]:
        """Peak memory after all cases."""
        return [
            Round(
                model=model_name,
                case="all",
                server=server.name,
                number=0,
                load_average=load_average(),
                peak_resident_bytes=peak_resident_bytes(server.pid),
            )
            for server in (self.ours, self.peer)
        ]


async def measured_round(model_name: str, case: Case, both: BothServers, number: int) -> PairedRound:
    """Measure the same requests on both servers, one after the other.

    Raises:
        BadAnswer: an answer has another length than asked for.
    """
    done = PairedRound(rounds=[], streams={})
    for name in server_order(number, (OURS, PEER)):
        server = both.by_name(name)
        before_load = load_average()
        cpu_before_s, steps_before = process_cpu_s(server.pid), server.step_counts()
        figures: dict[str, Any]
        if case.kind is Kind.EMBEDDINGS:
            answer = await server.embed(both.inputs(case, number))
            cost = _cost(server, cpu_before_s, steps_before)
            figures = vector_figures(answer, cost)
        else:
            requests = asks(case, round_number=number, vocabulary_size=both.vocabulary_size)
            streams = await server.generate(requests)
            cost = _cost(server, cpu_before_s, steps_before)
            _check_lengths(name, case, streams)
            done.streams[name] = streams
            figures = stream_figures(streams, cost)
        done.rounds.append(
            Round(model=model_name, case=case.name, server=name, number=number, load_average=before_load, **figures)
        )
    return done


def equal_answers(done: PairedRound) -> float:
    """See `figures.equal_share`."""
    return equal_share(done.streams[OURS], done.streams[PEER])


def load_round(
    model_name: str, case_name: str, number: int, model: Path, program: Path, sizes: Sizes, threads: int
) -> list[Round]:
    """Start and stop each server alone; both find the file in the page cache."""
    rounds = []
    for name in server_order(number, (OURS, PEER)):
        before_load = load_average()
        if name == OURS:
            with running_runner(model, sizes) as ours:
                load_s, peak = ours.load_s, peak_resident_bytes(ours.pid)
        else:
            with running_llama_server(program, model, sizes, threads=threads) as peer:
                load_s, peak = peer.load_s, peak_resident_bytes(peer.pid)
        rounds.append(
            Round(
                model=model_name,
                case=case_name,
                server=name,
                number=number,
                load_average=before_load,
                load_s=load_s,
                peak_resident_bytes=peak,
            )
        )
    return rounds


def _cost(server: Server, cpu_before_s: float, before: StepCounts | None) -> Cost:
    after = server.step_counts()
    cpu_s = process_cpu_s(server.pid) - cpu_before_s
    if before is None or after is None:
        return Cost(cpu_s=cpu_s)
    return Cost(
        cpu_s=cpu_s,
        decode_calls=after.decode_calls - before.decode_calls,
        decode_s=after.decode_s - before.decode_s,
        gap_s=after.gap_s - before.gap_s,
        host_cpu_s=after.host_cpu_s - before.host_cpu_s,
    )


def _check_lengths(name: str, case: Case, streams: Sequence[TokenStream]) -> None:
    for stream in streams:
        if not case.tokens <= stream.generated_tokens <= case.tokens + EXTRA_TOKENS_MAX:
            raise BadAnswer(f"{name} answered with {stream.generated_tokens} tokens, not {case.tokens}")
        if stream.prompt_tokens != case.prompt_tokens:
            raise BadAnswer(f"{name} counted {stream.prompt_tokens} prompt tokens, not {case.prompt_tokens}")
