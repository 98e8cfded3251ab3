"""One answer between protos and the values of `gateway.core`: what it waits for, its request, its events."""

from collections.abc import Sequence

from common.spec import codecs
from common.spec.bands import Band
from common.spec.codec import Codec
from gateway.core.models.routes import ReplicaInfo
from gateway.core.prepare.literals import Literal, Picture, Text, TokenIds
from gateway.core.prepare.options import AnswerPlan
from gateway.core.prepare.prompt import Prompt
from gateway.core.request.answers import (
    AnswerRequest,
    AnswerUsage,
    Delta,
    Done,
    FinishReason,
    GeneratedToken,
    LoadUpdate,
    PromptProgress,
    Queued,
    TokenAlternative,
)
from gateway.core.request.constraint import Constraint, FreeText
from protos import cluster_pb2, runner_pb2, scheduler_pb2

QUEUED = Codec(Queued, scheduler_pb2.Queued)
LOADING = Codec(LoadUpdate, scheduler_pb2.Loading)
PROMPT_PROGRESS = Codec(PromptProgress, runner_pb2.PromptProgress)
TOKEN = Codec(GeneratedToken, runner_pb2.Token, nested={"top": Codec(TokenAlternative, runner_pb2.Alternative)})


def _write(prompt: Prompt, message: runner_pb2.GenerateRequest | runner_pb2.TokenizeRequest) -> None:
    """Write the pieces of a prompt into a message, in place: a message that is put into another one is copied."""
    into = message.prompt if isinstance(message, runner_pb2.GenerateRequest) else message.segments
    for segment in prompt.segments:
        match segment:
            case Text(text):
                into.add(text=text)
            case Literal(text):
                into.add(literal=text)
            case Picture(data):
                into.add().media.data = data
            case TokenIds(ids):
                into.add().token_ids.ids.extend(ids)


def generate_request(  # noqa: PLR0913  # one name for each part of the message
    *,
    request: AnswerRequest,
    plan: AnswerPlan,
    prompt: Prompt,
    stop: tuple[str, ...],
    visible_token_ids: tuple[int, ...],
    replica: ReplicaInfo,
    constraint: Constraint | None,
    reasoning: FreeText | None,
    context_tokens: int | None,
    delivered: Sequence[int] = (),
    cache_salt: str = "",
    band: Band = Band.NORMAL,
    state_node_id: str = "",
) -> runner_pb2.GenerateRequest:
    """Build the request to a runner. `delivered` are the tokens that another runner has produced already."""
    message = runner_pb2.GenerateRequest(
        placement=placement_to_proto(replica),
        # The runner adds it only where the model asks for one and the template has not written it.
        add_bos=True,
        sampling=codecs.SAMPLING.to_proto(plan.sampling),
        stop=stop,
        visible_token_ids=visible_token_ids,
        max_tokens=plan.max_tokens,
        top_logprobs=request.top_logprobs,
        keep_alive_ms=request.keep_alive_ms,
        keep_tokens=plan.keep_tokens,
        truncate=request.truncate,
        shift=request.shift,
        cache_prompt=plan.cache_prompt,
        speculates=plan.speculates,
        speculative_tokens=plan.speculative_tokens,
        resume_token_ids=delivered,
        cache_salt=cache_salt,
        band=codecs.BAND.to_proto(band),
        state_node_id=state_node_id,
    )
    _write(prompt, message)
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
    message.constraint_lark = constraint.lark
    message.constraint_is_slow = constraint.is_slow
    if constraint.free_text is not None or constraint.schemas:
        # The markers of what our own grammars describe; under a client's grammar alone no control token comes up.
        message.constraint_token_ids.extend(message.visible_token_ids)


def delta(chunk: runner_pb2.TokenChunk) -> Delta:
    """Translate a piece of the answer."""
    tokens = chunk.tokens
    if len(tokens) == 1:  # nearly always
        return Delta(content=chunk.text, tokens=(_token(tokens[0]),))
    return Delta(content=chunk.text, tokens=tuple([_token(token) for token in tokens]))


_CUTS = {
    runner_pb2.CUT_BY_CONTEXT: FinishReason.CONTEXT_FULL,
    runner_pb2.CUT_BY_REPETITION: FinishReason.REPETITION,
}


def _token(token: runner_pb2.Token) -> GeneratedToken:
    if not token.HasField("logprob"):  # nearly always, and for every token
        return GeneratedToken(id=token.id, piece=token.piece)
    return TOKEN.from_proto(token)


def end_reason(final: runner_pb2.Final) -> FinishReason:
    """Translate a runner's reason for ending. Unknown values of newer runners read as an ordinary end."""
    match final.reason:
        case runner_pb2.DONE_REASON_STOP_STRING:
            return FinishReason.STOP_STRING
        case runner_pb2.DONE_REASON_LENGTH:
            return _CUTS.get(final.cut_by, FinishReason.LENGTH)
        case _:
            return FinishReason.END_TOKEN


def done(final: runner_pb2.Final, *, seed: int, total_duration_ns: int, load_duration_ns: int) -> Done:
    """Translate the end of an answer."""
    return Done(
        reason=end_reason(final),
        stop_string=final.stop_string,
        seed=seed,
        usage=AnswerUsage(
            prompt_tokens=final.prompt_tokens,
            cached_tokens=final.cached_tokens,
            completion_tokens=final.generated_tokens,
            total_duration_ns=total_duration_ns,
            load_duration_ns=load_duration_ns,
            prompt_duration_ns=final.prompt_duration_ns,
            generate_duration_ns=final.generate_duration_ns,
        ),
    )


def tokenize_request(prompt: Prompt) -> runner_pb2.TokenizeRequest:
    """Have a prompt read as Generate would."""
    message = runner_pb2.TokenizeRequest(add_bos=True)
    _write(prompt, message)
    return message


def placement_to_proto(where: ReplicaInfo) -> cluster_pb2.PlacementRef:
    """Translate the name of a running placement."""
    return cluster_pb2.PlacementRef(
        placement_id=where.placement_id, generation=where.generation, incarnation=where.incarnation
    )
