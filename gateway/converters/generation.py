"""One answer between the runner's protos and the values of `gateway.core`."""

from collections.abc import Sequence

from gateway.core.asked.answers import (
    AnswerRequest,
    Delta,
    Done,
    EndReason,
    GeneratedToken,
    Placed,
    PromptProgress,
    TokenAlternative,
    Usage,
)
from gateway.core.asked.constraint import Constraint, FreeText
from gateway.core.asked.images import decode_image
from gateway.core.models.routes import ReplicaInfo
from gateway.core.prepare.literals import Literal, Picture, Segment, Text
from gateway.core.prepare.options import AnswerPlan
from protos import cluster_pb2, runner_pb2


def segment_to_proto(segment: Segment) -> runner_pb2.Segment:
    """A piece of a prompt.

    Raises:
        InvalidRequest: an image that is none.
    """
    match segment:
        case Text(text):
            return runner_pb2.Segment(text=text)
        case Literal(text):
            return runner_pb2.Segment(literal=text)
        case Picture(image):
            return runner_pb2.Segment(media=runner_pb2.Media(data=decode_image(image)))


def token_ids_segment(token_ids: tuple[int, ...]) -> runner_pb2.Segment:
    """A piece of a prompt that is tokens already."""
    return runner_pb2.Segment(token_ids=runner_pb2.TokenIds(ids=token_ids))


def generate_request(  # noqa: PLR0913  # one name for each part of the message
    *,
    request: AnswerRequest,
    plan: AnswerPlan,
    prompt: list[runner_pb2.Segment],
    seed: int,
    stop: tuple[str, ...],
    visible_token_ids: tuple[int, ...],
    replica: ReplicaInfo,
    constraint: Constraint | None,
    reasoning: FreeText | None,
    context_tokens: int | None,
    delivered: Sequence[int] = (),
    cache_salt: str = "",
    prefix_names: Sequence[int] = (),
) -> runner_pb2.GenerateRequest:
    """What the runner is asked. `delivered` are the tokens that another runner answered already."""
    message = runner_pb2.GenerateRequest(
        placement=cluster_pb2.PlacementRef(
            placement_id=replica.placement_id, generation=replica.generation, incarnation=replica.incarnation
        ),
        prompt=prompt,
        # The runner adds it only where the model asks for one and the template has not written it.
        add_bos=True,
        sampling=_sampling(plan, seed),
        stop=stop,
        visible_token_ids=visible_token_ids,
        max_tokens=plan.max_tokens,
        top_logprobs=request.top_logprobs,
        keep_alive_ms=request.keep_alive_ms,
        keep_tokens=plan.keep_tokens,
        truncate=request.truncate,
        shift=request.shift,
        cache_prompt=plan.cache_prompt,
        resume_token_ids=delivered,
        cache_salt=cache_salt,
        prefix_names=prefix_names,
    )
    if constraint is not None:
        _constrain(message, constraint)
    if reasoning is not None and plan.think_budget is not None:
        message.reasoning_budget.opening = reasoning.opening
        message.reasoning_budget.closing = reasoning.closing
        message.reasoning_budget.tokens_max = plan.think_budget
    if context_tokens is not None:
        message.context_tokens = min(context_tokens, replica.context_tokens or context_tokens)
    return message


def _constrain(message: runner_pb2.GenerateRequest, constraint: Constraint) -> None:
    if constraint.json_schema:
        message.json_schema = constraint.json_schema
    else:
        message.grammar = constraint.grammar
    message.grammar_schemas.update(constraint.schemas)
    message.lenient_schemas.extend(constraint.lenient)
    if constraint.free_text is not None:
        message.free_text.opening = constraint.free_text.opening
        message.free_text.closing = constraint.free_text.closing
    if constraint.free_text is not None or constraint.schemas:
        # The markers of what our own grammars describe; under a client's grammar alone no control token comes up.
        message.constraint_token_ids.extend(message.visible_token_ids)


def _sampling(plan: AnswerPlan, seed: int) -> runner_pb2.Sampling:
    return runner_pb2.Sampling(
        temperature=plan.temperature,
        top_k=plan.top_k,
        top_p=plan.top_p,
        min_p=plan.min_p,
        typical_p=plan.typical_p,
        repeat_last_n=plan.repeat_last_n,
        repeat_penalty=plan.repeat_penalty,
        presence_penalty=plan.presence_penalty,
        frequency_penalty=plan.frequency_penalty,
        seed=seed,
        logit_bias=dict(plan.logit_bias),
        dry_multiplier=plan.dry_multiplier,
        dry_base=plan.dry_base,
        dry_allowed_length=plan.dry_allowed_length,
        dry_penalty_last_n=plan.dry_penalty_last_n,
        dry_sequence_breakers=plan.dry_sequence_breakers,
        xtc_probability=plan.xtc_probability,
        xtc_threshold=plan.xtc_threshold,
        top_n_sigma=plan.top_n_sigma,
    )


def prompt_progress(event: runner_pb2.PromptProgress) -> PromptProgress:
    """How far the prompt is read."""
    return PromptProgress(
        done_tokens=event.done_tokens, total_tokens=event.total_tokens, cached_tokens=event.cached_tokens
    )


def delta(chunk: runner_pb2.TokenChunk) -> Delta:
    """A piece of the answer."""
    return Delta(content=chunk.text, tokens=tuple([_token(token) for token in chunk.tokens]))


def _token(token: runner_pb2.Token) -> GeneratedToken:
    if not token.HasField("logprob"):  # nearly always, and for every token
        return GeneratedToken(id=token.id, piece=token.piece)
    return GeneratedToken(
        id=token.id,
        piece=token.piece,
        logprob=token.logprob,
        top=tuple(TokenAlternative(id=t.id, piece=t.piece, logprob=t.logprob) for t in token.top),
    )


def end_reason(reason: runner_pb2.DoneReason.ValueType) -> EndReason:
    """Why the runner ended. Unknown values of newer runners read as an ordinary end."""
    match reason:
        case runner_pb2.DONE_REASON_STOP_STRING:
            return EndReason.STOP_STRING
        case runner_pb2.DONE_REASON_LENGTH:
            return EndReason.LENGTH
        case _:
            return EndReason.END_TOKEN


def done(
    final: runner_pb2.Final, *, seed: int, replica: ReplicaInfo, total_duration_ns: int, load_duration_ns: int
) -> Done:
    """The end of an answer."""
    return Done(
        reason=end_reason(final.reason),
        stop_string=final.stop_string,
        seed=seed,
        placed=placed(replica),
        usage=Usage(
            prompt_tokens=final.prompt_tokens,
            cached_tokens=final.cached_tokens,
            completion_tokens=final.generated_tokens,
            total_duration_ns=total_duration_ns,
            load_duration_ns=load_duration_ns,
            queue_duration_ns=final.queue_duration_ns,
            prompt_duration_ns=final.prompt_duration_ns,
            generate_duration_ns=final.generate_duration_ns,
        ),
    )


def tokenize_request(segments: Sequence[runner_pb2.Segment]) -> runner_pb2.TokenizeRequest:
    """Read segments as Generate would."""
    return runner_pb2.TokenizeRequest(segments=segments, add_bos=True)


def placed(replica: ReplicaInfo) -> Placed:
    """Where an answer comes from."""
    return Placed(
        placement_id=replica.placement_id,
        generation=replica.generation,
        incarnation=replica.incarnation,
        node_id=replica.node_id,
    )


def placement_to_proto(where: Placed) -> cluster_pb2.PlacementRef:
    """Names a running placement."""
    return cluster_pb2.PlacementRef(
        placement_id=where.placement_id, generation=where.generation, incarnation=where.incarnation
    )


def token_to_proto(token: GeneratedToken) -> runner_pb2.Token:
    """A token of an answer."""
    top = [runner_pb2.Alternative(id=t.id, piece=t.piece, logprob=t.logprob) for t in token.top]
    return runner_pb2.Token(id=token.id, piece=token.piece, logprob=token.logprob, top=top)
