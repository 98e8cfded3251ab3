"""A sequence while the engine thread has it."""

import time
from dataclasses import KW_ONLY, InitVar, dataclass, field

from common.clock import NS_PER_S
from runner.core.grammar.token_grammar import GrammarCursor
from runner.core.sequence.endings import EndRules, generated_tokens_max
from runner.core.sequence.media import PreparedImage
from runner.core.sequence.preemption import Contender, rank_of
from runner.core.sequence.reasoning_budget import ReasoningCursor
from runner.core.sequence.requests import GenerationRequest, PreparedPrompt
from runner.core.sequence.sequence_names import SequenceNames
from runner.core.sequence.slots import Leader
from runner.core.states.gate import Tier
from runner.engine.batched.drafts import Drafts
from runner.engine.batched.sampler import Sampler
from runner.engine.contract.engine import SequenceTimes
from runner.engine.contract.states import SavedState


@dataclass(slots=True, eq=False)
class Sequence:
    """One request from submit to freed. Only the engine thread touches it after `submit`.

    Made in the caller's thread, so that the engine thread has less to do.

    Attributes:
        id: never used before.
        request: checked.
        prepared: what the slot has to hold.
        end_tokens: of the vocabulary.
        suppressed: tokens that the model file forbids.
        repeats_max: how often a token may repeat; 0: without limit.
    """

    id: int
    request: GenerationRequest
    prepared: PreparedPrompt
    _: KW_ONLY
    end_tokens: InitVar[frozenset[int]]
    suppressed: InitVar[frozenset[int]]
    repeats_max: InitVar[int]
    rules: EndRules = field(init=False)
    grammar: GrammarCursor | None = field(init=False)
    sampler: Sampler = field(init=False)
    # By unit key: the image that it is a part of, and which part.
    images: dict[int, tuple[PreparedImage, int]] = field(init=False)
    media_ahead: bool = False  # some pending input is a row of an image
    slot_id: int = -1
    inputs: list[int] = field(init=False)  # that a slot must hold before the next token; those of a paused one grow
    pending: list[int] = field(default_factory=list)  # inputs that are not in the cache yet
    generating: bool = False  # the one pending input is the token sampled last
    draft: list[int] = field(default_factory=list)  # guesses of what follows `pending`, evaluated with it
    drafts: Drafts | None = None  # made when drafts are first asked for
    passed_tokens: int = 0  # inputs that overtook it, in calls that left it out, since it last got a token
    paused: bool = False
    leader: Leader | None = None  # evaluates what this one needs too; it waits until that is done
    cached_tokens: int = 0
    computed_tokens: int = 0  # of the prompt, before a pause
    checkpoints: tuple[int, ...] = ()  # after how many inputs of the prompt to save, in order
    sought: bool = False  # a saved state of another node was asked for
    looked_up: bool = False  # a saved state was looked for
    fetching: bool = False  # it is being brought; the sequence waits
    saved_state: SavedState | None = None  # brought, and not in a slot yet
    fetch_ns: int = 0  # when it was sent for
    fetch_tier: Tier | None = None
    pauses: int = 0  # for which it lost its slot
    keeps_slot: bool = False  # its state is too large to be moved out of a slot
    shifted: bool = False  # its slot's content does not begin as its prompt
    forgotten: bool = False  # its tenant wants nothing kept
    waiting_ns: int = field(init=False)  # since when it has no slot
    waited_ns: int = 0  # without a slot, before that
    submitted_ns: int = field(init=False)
    slot_ns: int = 0
    first_batch_ns: int = 0
    first_token_ns: int = 0
    last_token_ns: int = 0
    sampling_first_ns: int = 0  # the engine's total sampling time before the first and before the last token
    sampling_last_ns: int = 0
    sampling_paused_ns: int = 0  # the total when it lost its slot

    def __post_init__(self, end_tokens: frozenset[int], suppressed: frozenset[int], repeats_max: int) -> None:
        request, prepared = self.request, self.prepared
        self.rules = EndRules(
            end_tokens=frozenset() if request.ignore_eos else end_tokens,
            limit=generated_tokens_max(request.max_tokens, prepared.context_tokens),
            # With ignore_eos every token up to the limit is wanted.
            repeats_max=0 if request.ignore_eos else repeats_max,
            resumed=request.resumed,
        )
        self.grammar = (
            None
            if request.grammar is None
            else GrammarCursor(request.grammar, resumed=request.resumed, ends=not request.ignore_eos)
        )
        self.sampler = Sampler(
            request.sampling,
            suppressed=suppressed,
            context_tokens=prepared.context_tokens,
            earlier=(*request.prompt.token_ids, *request.resumed),
            breakers=request.breakers,
            grammar=self.grammar,
            reasoning=None
            if request.reasoning is None
            else ReasoningCursor(request.reasoning, resumed=request.resumed),
        )
        self.images = {
            unit.key: (image, part) for image in request.prompt.images for part, unit in enumerate(image.units)
        }
        self.inputs = prepared.inputs
        self.submitted_ns = self.waiting_ns = time.monotonic_ns()

    def contender(self, now_ns: int) -> Contender:
        """Return what decides whether it gets a slot or keeps it."""
        waited_ns = self.waited_ns + (now_ns - self.waiting_ns if self.slot_id < 0 else 0)
        return Contender(self.id, self.request.band, waited_ns / NS_PER_S, self.pauses)

    def rank(self, now_ns: int) -> int:
        """Return the band that it counts as in a batch: time without a token raises it."""
        waited_ns = now_ns - (self.last_token_ns or self.submitted_ns)
        return rank_of(self.request.band, waited_ns / NS_PER_S)

    def stamp_slot(self, *, now_ns: int, sampling_ns: int) -> None:
        """Note that it is given a slot. The time of a pause counts as waiting, not as computing."""
        paused_ns = now_ns - self.waiting_ns
        self.waited_ns += paused_ns
        if not self.slot_ns:
            self.slot_ns = now_ns
            return
        self.slot_ns += paused_ns
        self.first_batch_ns += paused_ns if self.first_batch_ns else 0
        if self.first_token_ns:
            self.first_token_ns += paused_ns
            self.sampling_first_ns += sampling_ns - self.sampling_paused_ns

    def stamp_pause(self, *, now_ns: int, sampling_ns: int) -> None:
        """Note that it has lost its slot."""
        self.pauses += 1
        self.waiting_ns, self.sampling_paused_ns = now_ns, sampling_ns

    def stamp_token(self, *, synced_ns: int, sampling_ns: int) -> None:
        """Note a token sampled from the results of `synced_ns`; `sampling_ns` is the engine's total before it."""
        if not self.first_token_ns:
            self.first_token_ns = synced_ns
            self.sampling_first_ns = sampling_ns
        self.last_token_ns = synced_ns
        self.sampling_last_ns = sampling_ns

    @property
    def names(self) -> SequenceNames | None:
        """Return the names of its beginnings; None if the prompt was cut."""
        is_whole = len(self.request.prompt.inputs) == self.prepared.prompt_tokens
        return self.request.names if is_whole else None

    @property
    def cached_prompt_tokens(self) -> int:
        """Return the number of prompt tokens taken from the cache. After a resume it may include answer tokens."""
        return min(self.cached_tokens, self.prepared.prompt_tokens)

    def times(self) -> SequenceTimes | None:
        """Return the measured times; None if the sequence never had a slot."""
        if not self.slot_ns:
            return None
        prompt_ns = generate_ns = 0
        if self.first_token_ns:
            prompt_ns = self.first_token_ns - self.first_batch_ns
            sampling_ns = self.sampling_last_ns - self.sampling_first_ns
            generate_ns = max(0, self.last_token_ns - self.first_token_ns - sampling_ns)
        return SequenceTimes(
            queue_ns=self.slot_ns - self.submitted_ns,
            prompt_ns=prompt_ns,
            generate_ns=generate_ns,
            prompt_tokens=self.prepared.prompt_tokens,
            cached_tokens=self.cached_prompt_tokens,
            evaluated_tokens=len(self.prepared.inputs) - self.cached_tokens,
            slot_id=self.slot_id,
        )
