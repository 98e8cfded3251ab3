"""Behaviour of a fake engine, and its faults."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from common.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeOptions:
    """Everything is settable at start; the defaults answer at once and never break.

    A step takes `step_s`, and for each input or token its share of the two speeds; a speed of 0 takes no time.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)

    # The default engine computes, and each of its steps takes `step_s` longer. Beside it these two count: of
    # requests with these sampling seeds it evaluates guesses, about two of three right if the answer is this one.
    real: bool = False
    drafts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    endless_kernel_after_steps: int | None = None  # with `real`, on a card of CUDA
    seed: int = 0  # another seed is another model
    prompt_tokens_per_s: float = 0.0
    tokens_per_s: float = 0.0  # of all slots together
    step_s: float = 0.0
    batch_tokens: int = 0  # of one step; 0: as the layout says
    load_s: float = 0.0
    load_error: Literal["", "bad_model_file", "insufficient_memory"] = ""  # instead of a loaded model
    trained_context_tokens: int = 4096
    weights_bytes: int = 0  # 0: the size of the model file, if there is one
    held_bytes: int = 0  # host memory that the process really takes
    answer_tokens: int = 0  # say the end token after so many; 0: never
    # Faults. Tokens are counted over all sequences since the start.
    stall_after_tokens: int | None = None  # never step again, as with a device that hangs
    die_after_tokens: int | None = None
    exit_status: int | None = None  # of that death; None: abort
    abort_on_seed: int | None = None  # abort when a request with this sampling seed is evaluated
    last_words: tuple[str, ...] = ()  # error lines of the engine's library before an abort, which is then its own
    stall_on_seed: int | None = None  # block the engine thread when a request with this sampling seed is evaluated
    ignore_sigterm: bool = False


def parse_fake_options(text: str) -> FakeOptions:
    """Options from a JSON object.

    Raises:
        InvalidRequest: not JSON, an unknown name, or a value of another type; the text names the first one.
    """
    try:
        return TypeAdapter(FakeOptions).validate_json(text or "{}")
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"]) or "not an object"
        raise InvalidRequest(f"engine options: {name}: {first['msg']}", param="engine_options") from error
