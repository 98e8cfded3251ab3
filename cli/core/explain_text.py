"""An answer of /puna/v1/explain as lines for people. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from cli.core.formatting import crash_text, format_bytes, format_span, lent_text

Json = Mapping[str, Any]
_OUTCOMES = {
    "placed": "fits",
    "measuring": "has to be measured first; ask again in a moment",
    "busy": "has to wait",
    "insufficient_memory": "does not fit",
    "no_device": "has nowhere to go",
    "measure_failed": "could not be measured",
    "none": "has not been decided about",
}
_CLASSES = {"cache": "kv", "projector": "projector and draft"}  # classes of memory by another name
_MARKS = {"chosen": "chosen", "fits": "fits  "}


def explain_lines(answer: Json, *, now_unix_s: float) -> Iterator[str]:
    """Yield the decision, the loaded replicas, every candidate with its figures, and suggestions."""
    model, outcome = answer.get("model", ""), str(answer.get("outcome", ""))
    when = "now" if answer.get("hypothetical") else f"{float(answer.get('age_s') or 0):.0f} s ago"
    message = f": {answer['message']}" if answer.get("message") else ""
    yield f"{model}: {_OUTCOMES.get(outcome, outcome)} ({when}){message}"
    if answer.get("waits_for"):
        yield f"waits for {answer['waits_for']}"
    for row in answer.get("crash_rows") or []:
        yield _crash_line(row, now_unix_s=now_unix_s)
    for one in answer.get("constraints") or []:
        yield f"held to  {one.get('name')}={one.get('value')} ({one.get('origin')})"
    for replica in answer.get("replicas") or []:
        yield _replica_line(replica)
        if replica.get("speculation"):
            yield f"drafts  {_where(replica)}  {_drafts(replica['speculation'])}"
    for candidate in answer.get("candidates") or []:
        yield from _candidate_lines(candidate)
    victims = answer.get("victims") or []
    if victims:
        yield "evicts  " + ", ".join(f"{one.get('model')} ({one.get('placement')})" for one in victims)
    layout = answer.get("layout")
    if layout:
        yield (
            f"auto    slots {layout.get('slots')}, num_ctx {layout.get('context_length')}, "
            f"evicted {len(victims) or 'none'}, measured {answer.get('measure_rounds', 0)} rounds, "
            f"attempts {answer.get('attempts', 0)}"
        )
    for other in answer.get("would_fit") or []:
        yield f"would fit  {other}"


def prompt_lines(answer: Json) -> Iterator[str]:
    """Yield the replica that a request with a prompt would go to, and what each replica holds of it and predicts."""
    size = f"{answer.get('prompt_bytes')} bytes"
    if (tokens := answer.get("prompt_tokens")) is not None:
        size = f"{tokens} tokens, {size}"
    yield f"{answer.get('model')}: {answer.get('message')} ({size})"
    for one in answer.get("replicas") or []:
        mark = _MARKS["chosen" if one.get("is_chosen") else "fits"]
        held = ", ".join(map(_held_text, one.get("held") or [])) or "nothing"
        first_ms = one.get("first_token_ms")
        predicted = (
            "not measured yet" if first_ms is None else f"{first_ms:.0f} ms, slowdown {one['slowdown_ms']:.0f} ms"
        )
        yield (
            f"{mark}  {one.get('node')}/{one.get('placement')}  slots {one.get('slots_free')} of "
            f"{one.get('slots_total')} free, holds {held}, first token {predicted} "
            f"(goes on from {one.get('goes_on_from') or 'nothing'})"
        )
    if answer.get("brings_from"):
        yield f"brings  a state from {answer['brings_from']}, if that is faster"


def _held_text(part: Json) -> str:
    text = f"{part.get('tokens')} tokens in {part.get('place')}"
    return text if part.get("restore_ms") is None else f"{text} (restore {part['restore_ms']:.0f} ms)"


def _crash_line(row: Json, *, now_unix_s: float) -> str:
    text = f"crashes {row.get('node')}  {crash_text(row, now_unix_s=now_unix_s)}"
    left_s = float(row.get("excluded_until_unix_ms") or 0) / 1000 - now_unix_s
    if left_s > 0:
        text += f", other nodes are preferred for {format_span(left_s)}"
    return f"{text}: {row.get('error')}; `puna load {row.get('model')}` tries it at once"


def _where(replica: Json) -> str:
    return f"{replica.get('node')}/{', '.join(replica.get('devices') or []) or 'CPU'}"


def _drafts(speculation: Json) -> str:
    """Say whether guessed tokens are evaluated, how many were right, and from what share on they pay."""
    if speculation.get("off_reason"):
        return f"off: {speculation['off_reason']}"
    text = "for requests with speculative=on"
    if speculation.get("drafted_tokens"):
        text += f", {speculation.get('accepted_tokens')} of {speculation['drafted_tokens']} right"
    if speculation.get("drafters_off"):
        text += f", {speculation['drafters_off']} drafters switched off"
    if speculation.get("draft_off_reason"):
        text += f", without the draft model: {speculation['draft_off_reason']}"
    elif speculation.get("draft_ms"):
        text += f", with a draft model ({speculation['draft_ms']:.1f} ms a token)"
    if not speculation.get("call_ms"):
        return f"{text}, durations of calls not measured yet"
    share = speculation.get("paying_share")
    pays = "pay at no share of right ones" if share is None else f"pay from {share:.0%} right ones on"
    return f"{text}, {pays} (a call of one token takes {speculation['call_ms']:.1f} ms)"


def _replica_line(replica: Json) -> str:
    predicted, held = int(replica.get("predicted_bytes") or 0), int(replica.get("allocated_bytes") or 0)
    text = f"loaded  {_where(replica)}  holds {format_bytes(held)}"
    if predicted:
        text += f" (planned {format_bytes(predicted)})"
    text += f", num_ctx {replica.get('context_length')}"
    return text + (", pinned" if replica.get("pinned") else "")


def _candidate_lines(candidate: Json) -> Iterator[str]:
    mark = _MARKS.get(str(candidate.get("verdict")), "not   ")
    shape = str(candidate.get("shape") or "")
    for device in candidate.get("devices") or [{}]:
        where = f"{device.get('node') or candidate.get('node')}/{device.get('name') or device.get('id')}"
        if device.get("layers"):
            where += f" ({device['layers']} layers)"
        line = f"{mark}  " + (f"{shape}  " if shape else "") + where
        if device.get("need_bytes"):
            line += f"  {_figures(device, estimated=bool(candidate.get('estimated')))}"
        elif device.get("free_source"):
            line += f"  {_room(device)}"
        if candidate.get("reason"):
            line += f"  {candidate['reason']}"
        yield f"{line}  {candidate.get('verdict')}"


def _figures(device: Json, *, estimated: bool) -> str:
    need, have = int(device.get("need_bytes") or 0), int(device.get("available_bytes") or 0)
    classes = " + ".join(
        f"{_CLASSES.get(name, name)} {format_bytes(int(device.get(f'{name}_bytes') or 0))}"
        + (f" ({device['reserve_source']})" if name == "reserve" and device.get("reserve_source") else "")
        for name in ("weights", "cache", "graph", "projector", "reserve", "margin")
        if name != "projector" or device.get("projector_bytes")
    )
    origin = "estimated" if estimated else "measured"
    short = f", short {format_bytes(need - have)}" if need > have else ""
    return f"need {format_bytes(need)} = {classes} ({origin}), {_room(device)}{short}"


def _room(device: Json) -> str:
    """Describe a device's available bytes: free, promised, and kept back."""
    names = ("available", "free", "promised", "overhead")
    have, free, promised, kept = (int(device.get(f"{name}_bytes") or 0) for name in names)
    text = f"avail {format_bytes(have)} of {format_bytes(free)} free"
    text += f", {format_bytes(promised)} promised" if promised else ""
    text += f", {format_bytes(kept)} kept back" if kept else ""
    if left := int(device.get("backoff_bytes") or 0):
        text += f", {format_bytes(left)} left alone"
    age_s = int(device.get("free_age_ms") or 0) / 1000
    text += f" ({device.get('free_source') or 'unknown'}, {age_s:.1f} s)"
    text += f", of the pool {device['pool']}" if device.get("pool") else ""
    if speed := round(device.get("speed_bytes_s") or 0):
        text += f", reads {format_bytes(speed)}/s ({device.get('speed_source') or 'unknown'})"
    return text + _limit(device) + "".join(f", lent to {lent_text(one)}" for one in device.get("lent_to") or [])


def _limit(device: Json) -> str:
    """Name the limit that makes the available bytes fewer than the free ones."""
    most = format_bytes(int(device.get("max_bytes") or 0))
    match device.get("limit"):
        case "promised":
            return f", limited by what is promised of {format_bytes(int(device.get('total_bytes') or 0))}"
        case "max_bytes":
            return f", limited by max_bytes {most} of the device"
        case "model_max_bytes":
            return f", limited by max_bytes {most} of the model"
        case "server_in_use":
            return ", its RPC server serves one placement at a time"
        case _:
            return ""
