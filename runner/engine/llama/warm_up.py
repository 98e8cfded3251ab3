"""The first calls of a new context: what its memory can do, and everything allocated that a later call might need."""

import time

from common.clock import NS_PER_S
from common.spec.layout import Layout
from runner.core.sequence.slots import MemoryRules
from runner.core.threads.step_times import StepTimes
from runner.engine.llama.batch import Batch
from runner.engine.llama.context import Context, DecodeResult, EngineFailure
from runner.engine.llama.model import Model


def warm_up(context: Context, model: Model, layout: Layout, times: StepTimes) -> MemoryRules:
    """Evaluate a few tokens and forget them. `times` learns from it.

    On devices the largest prompt batch and the largest generation batch run once, because backends there allocate as
    they compute. On the CPU all but a scratch buffer was reserved with the context (it holds scores in half precision,
    where attention is not fused), and a batch would only make the load longer.
    """
    token_id = max(model.vocabulary.bos, 0)
    batch = Batch(capacity=context.batch_tokens, slots=context.slots)
    _run(context, batch, {0: [token_id] * min(2, context.batch_tokens)}, times)
    erases_tail = context.batch_tokens > 1 and context.erase(0, 1)
    context.erase(0, 0)
    if layout.devices:
        _run(context, batch, {0: [token_id] * min(layout.batch_tokens, layout.context_tokens)}, times)
        context.erase(0, 0)
        _run(context, batch, {slot_id: [token_id] for slot_id in range(context.slots)}, times)
        for slot_id in range(context.slots):
            context.erase(slot_id, 0)
    return MemoryRules(
        erases_tail=erases_tail,
        rollback_tokens=context.rollback_tokens,
        window_tokens=model.window_tokens,
        # A recurrent state renumbers its position gladly, but cannot forget a range.
        can_move=context.can_shift and erases_tail,
    )


def _run(context: Context, batch: Batch, rows: dict[int, list[int]], times: StepTimes) -> None:
    batch.clear()
    for slot_id, tokens in rows.items():
        batch.add(slot_id, 0, tokens, wants_logits=True)
    began_ns = time.monotonic_ns()
    if context.decode(batch) != DecodeResult.DONE:
        raise EngineFailure("the first decode found no cells")
    context.synchronize()
    is_prompt = len(rows) == 1
    times.see(batch.size, (time.monotonic_ns() - began_ns) / NS_PER_S, prompt_inputs=batch.size if is_prompt else 0)
