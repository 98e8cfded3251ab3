"""Redis and its sentinels. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cli.core.doctor.findings import Finding, fail, ok, warn

_KEEP_ADVICE = "`CONFIG SET appendonly yes`, or `save` lines in its configuration"


def assess_redis(info: Mapping[str, Any], *, save: str | None) -> Iterator[Finding]:
    """Check the fields of INFO; `save` is that setting, None if the server does not report it."""
    version = info.get("redis_version") or info.get("valkey_version") or "of unknown version"
    yield ok("redis", f"it answers, version {version}")
    if info.get("role") not in (None, "master"):
        yield fail("redis", f"it is a {info['role']}", "name the primary, or the sentinels that know it")
    policy, limit = info.get("maxmemory_policy"), int(info.get("maxmemory") or 0)
    if policy is not None and policy != "noeviction":
        advice = "`CONFIG SET maxmemory-policy noeviction`: it must refuse rather than forget who leads"
        text = f"maxmemory-policy is {policy}"
        yield fail("redis", text, advice) if limit else warn("redis", f"{text}, though maxmemory is not set", advice)
    appends, snapshots = bool(int(info.get("aof_enabled") or 0)), bool(save)
    if not appends and save == "":
        yield warn(
            "redis", "it keeps nothing over a restart: what is wanted, pinned and drained is forgotten", _KEEP_ADVICE
        )
    elif appends or snapshots:
        yield ok("redis", f"it keeps its data: {'every write' if appends else 'snapshots'}")
    for field, what in (("aof_last_write_status", "append"), ("rdb_last_bgsave_status", "save")):
        if info.get(field) not in (None, "ok"):
            yield fail("redis", f"its last {what} failed", "look at its log, and at the room on its disk")


@dataclass(frozen=True, slots=True, kw_only=True)
class SentinelAnswer:
    """Answer of one sentinel; only `trouble` is set if it did not answer."""

    address: str
    primary: str = ""
    quorum: int = 0
    trouble: str = ""


def assess_sentinels(answers: Sequence[SentinelAnswer], *, set_name: str) -> Iterator[Finding]:
    """Check that enough sentinels answer, and that all name the same primary."""
    heard = [answer for answer in answers if not answer.trouble]
    for answer in answers:
        if answer.trouble:
            yield warn("redis", f"sentinel {answer.address}: {answer.trouble}", "start it, or correct PUNA_REDIS_URL")
    primaries = sorted({answer.primary for answer in heard})
    quorum = max((answer.quorum for answer in heard), default=0)
    if not heard:
        yield fail("redis", "no sentinel answers", "start them, or correct PUNA_REDIS_URL")
    elif len(primaries) > 1:
        yield fail("redis", f"sentinels name different primaries: {', '.join(primaries)}", "wait for a failover to end")
    elif len(heard) < max(quorum, len(answers) // 2 + 1):
        text = f"{len(heard)} of {len(answers)} sentinels of {set_name} answer, too few to replace the primary"
        yield fail("redis", text, "start the others")
    else:
        yield ok("redis", f"{len(heard)} of {len(answers)} sentinels of {set_name} name {primaries[0]}")
    if len(answers) < 3:
        yield warn("redis", f"only {len(answers)} sentinels are named", "three survive the loss of one")
