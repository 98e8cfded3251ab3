"""Leadership and desired placements in Redis. Every command has a deadline; a Redis that is away is not waited for.

All keys share the hash tag {sched}, so that a cluster keeps them on one node. Scripts run in one step.

Records are JSON that only grows; unknown fields of a newer build are ignored.

{sched}:leader      the leader's lease; expires by itself
{sched}:fence       the highest fence given out; only grows
{sched}:placements  hash: placement id → {"version": n, "record": {…}}
{sched}:constraints hash: model name → {"version": n, "record": {…}}
{sched}:margins     hash: what it was learned about → {"version": n, "record": {…}}
{sched}:drains      hash: node id → {"version": n, "record": {"budget_s": n}}
{sched}:aliases     hash: alias → {"version": n, "record": {"name": …, "target": …}}; "" → an empty record, which
                    distinguishes a store without aliases from one that has lost them
{sched}:removed     hash: node id → {"version": n, "record": {"issued_before_unix_ms": n}}
{sched}:writes      number of all writes; one that falls shows that a replica without the last ones has taken over
{sched}:schema      version of all of this
"""

from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

import orjson

from common.clock import Clock
from common.errors import InvalidRequest, StaleFence, StartupError
from common.fences import FENCE_AHEAD_MS_MAX
from common.redis.client import UNREACHED, VulnerableServerError, answer_within, check_of, open_redis
from common.spec import codecs
from common.spec.layout import Layout
from common.telemetry.logs import get_logger
from scheduler import metrics
from scheduler.converters import MEMORY_REPORT
from scheduler.core.sizes.margins import LOADS_KEPT, NO_MARGINS, MarginKey, Margins
from scheduler.core.state.effects import (
    RemoveDesired,
    SaveAlias,
    SaveConstraints,
    SaveDesired,
    SaveDrain,
    SaveMargins,
    Write,
)
from scheduler.core.values.asked import Asked
from scheduler.core.values.constraint_fields import FIELD_NAMES, parse_constraints, written_constraints
from scheduler.core.values.constraints import Constraints
from scheduler.core.values.desired import DesiredPlacement, Phase
from scheduler.core.values.memory import MemoryReport
from scheduler.core.values.routing_table import ModelAlias

Record = dict[str, Any]
# What is raised by reading a record that is none.
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, InvalidRequest)


def encode(record: DesiredPlacement) -> Record:
    """Return a placement as its record."""
    written = {field.name: getattr(record, field.name) for field in fields(record)}
    return written | {"spec_digest": record.spec_digest, "layout": codecs.LAYOUT.to_json(record.layout)}


def decode(record: Record) -> DesiredPlacement:
    """Return a placement from its record; raises one of `UNREADABLE`."""
    planned, asked = record.get("planned"), record.get("asked") or {}
    return DesiredPlacement(
        placement_id=str(record["placement_id"]),
        generation=int(record["generation"]),
        phase=Phase(record["phase"]),
        node_id=str(record["node_id"]),
        model_name=str(record["model_name"]),
        model_digest=str(record["model_digest"]),
        layout=_layout(record["layout"]),
        planned=_report(planned) if planned is not None else None,
        keep_alive_ms=record.get("keep_alive_ms"),
        keep_alive_heard=int(record.get("keep_alive_heard", 0)),
        asked=Asked(
            context_tokens=asked.get("context_tokens"),
            options=codecs.LOAD_OPTIONS.from_json(asked.get("options") or {}),
        ),
    )


def _layout(written: Record) -> Layout:
    for name in ("devices", "context_tokens", "slots", "batch_tokens"):
        written[name]  # every version has written them: a record without one is broken
    return codecs.LAYOUT.from_json(written)


def _report(written: Record) -> MemoryReport:
    for part in (*written["devices"], written["host"]):
        for name in ("device_id", "weights_bytes", "cache_bytes", "graph_bytes"):
            part[name]  # likewise
    return MEMORY_REPORT.from_json(written)


def decode_constraints(record: Record) -> Constraints:
    """Return constraints from their record, which `written_constraints` makes; raises one of `UNREADABLE`."""
    return parse_constraints({name: value for name, value in record.items() if name in FIELD_NAMES})


def _encode_margins(margins: Margins) -> dict[str, Record]:
    """Return learned margins as records, each under a name of its own."""
    records: dict[str, Record] = {
        f"loads/{key.build}/{key.architecture}/{key.device_kind}{'/split' if key.is_split else ''}": {
            **asdict(key),
            "residuals": residuals,
            "shares": margins.shares.get(key, ()),
        }
        for key, residuals in margins.residuals.items()
    }
    for (digest, kind), extra in margins.exhausted.items():
        records[f"exhausted/{digest}/{kind}"] = {"model_digest": digest, "device_kind": kind, "extra_bytes": extra}
    return records


def _decode_margins(record: Record) -> Margins:
    """Return one piece of what was learned."""
    kind = str(record["device_kind"])
    if "model_digest" in record:
        return Margins(exhausted={(str(record["model_digest"]), kind): int(record["extra_bytes"])})
    key = MarginKey(
        build=str(record["build"]),
        architecture=str(record["architecture"]),
        device_kind=kind,
        is_split=bool(record.get("is_split", False)),
    )
    residuals = tuple(int(count) for count in record["residuals"])[-LOADS_KEPT:]
    shares = tuple(float(share) for share in record.get("shares", ()))[-LOADS_KEPT:]
    return Margins(residuals={key: residuals}, shares={key: shares})


def _decode_alias(record: Record) -> ModelAlias | None:
    """Return an alias; None: the record that only says that there may be some."""
    return ModelAlias(name=str(record["name"]), target=str(record["target"])) if record else None


LEADER = "{sched}:leader"
FENCE = "{sched}:fence"
PLACEMENTS = "{sched}:placements"
CONSTRAINTS = "{sched}:constraints"
MARGINS = "{sched}:margins"
DRAINS = "{sched}:drains"
ALIASES = "{sched}:aliases"
ALIASES_MARK = ""  # no alias has this name
REMOVED = "{sched}:removed"
WRITES = "{sched}:writes"
SCHEMA = "{sched}:schema"

SCHEMA_VERSION = "1"

# KEYS leader, fence, schema, writes · ARGV caller, ttl_ms, caller's high-water, schema version, most ms ahead of the
# clock → {1, caller, fence, set aside, writes} led or renewed; {0, holder, fence, "", ""} another scheduler leads;
# {-1, schema, "", "", ""} not our schema. "set aside" is a stored fence or a high-water that no host would accept.
# The time floor keeps the fence rising after the counter is lost. "%.0f": Lua would write large numbers as 1.7e+12.
ACQUIRE = """
local schema = redis.call('GET', KEYS[3])
if schema and schema ~= ARGV[4] then return {-1, schema, '', '', ''} end
local holder = redis.call('GET', KEYS[1])
local written = redis.call('GET', KEYS[2]) or '0'
if holder and holder ~= ARGV[1] then return {0, holder, written, '', ''} end
local writes = redis.call('GET', KEYS[4]) or '0'
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local fence_max = now_ms + tonumber(ARGV[5])
local stored, high_water = tonumber(written), tonumber(ARGV[3])
local set_aside = ''
if high_water >= fence_max then
  set_aside, high_water = ARGV[3], 0
end
if not (stored and stored >= 0 and stored < fence_max and string.format('%.0f', stored) == written) then
  set_aside, stored = written, 0
end
if holder and stored > 0 and stored >= high_water then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return {1, holder, written, set_aside, writes}
end
local fence = string.format('%.0f', math.max(stored + 1, now_ms, high_water + 1))
redis.call('SET', KEYS[2], fence)
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('SET', KEYS[3], ARGV[4])
return {1, ARGV[1], fence, set_aside, writes}
"""

# KEYS leader · ARGV caller. Compare and delete.
RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""

# KEYS fence, hash, writes · ARGV fence, name in the hash, expected version, record ("" removes)
# → {1, version, writes} written; {0, fence} the fence is not current; {-1, version} another scheduler wrote.
WRITE = """
local fence = redis.call('GET', KEYS[1])
if fence ~= ARGV[1] then return {0, fence or ''} end
local stored = redis.call('HGET', KEYS[2], ARGV[2])
local version = 0
if stored then version = cjson.decode(stored)['version'] end
if version ~= tonumber(ARGV[3]) then return {-1, string.format('%.0f', version)} end
local writes = string.format('%.0f', (tonumber(redis.call('GET', KEYS[3])) or 0) + 1)
redis.call('SET', KEYS[3], writes)
if ARGV[4] == '' then
  redis.call('HDEL', KEYS[2], ARGV[2])
  return {1, '0', writes}
end
local next_version = string.format('%.0f', version + 1)
redis.call('HSET', KEYS[2], ARGV[2], '{"version":' .. next_version .. ',"record":' .. ARGV[4] .. '}')
return {1, next_version, writes}
"""


log = get_logger()

COMMAND_TIMEOUT_S = 0.5
FENCE_CHARACTERS_MAX = 40  # of a stored fence in the log
LEASE_TTL_S = 5.0
# After so many failures in a row nothing is tried for a second: callers get their refusal at once.
CIRCUIT_FAILURES = 3
CIRCUIT_OPEN_S = 1.0

Result = TypeVar("Result")


class StoreUnavailableError(Exception):
    """The store did not answer, or not with what was asked. The caller's move: try again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderLease:
    """Leader, as the store has it."""

    is_mine: bool
    holder: str
    fence: int  # 0: another scheduler leads
    lost_writes: bool = False  # since the last call the store has lost what was written to it


class RedisStore:
    """Owned by the scheduler's event loop. Methods raise `StoreUnavailableError`; none takes longer than a second."""

    def __init__(self, url: str, clock: Clock, *, any_version: bool = False) -> None:
        """Prepare a client, which connects when first used. `any_version`: use also a server with a known hole.

        Raises:
            StartupError: the URL is none.
        """
        check = check_of(url, any_version=any_version)
        try:
            self._redis: Any = open_redis(url, timeout_s=COMMAND_TIMEOUT_S, connections_max=8, check=check)
        except ValueError as error:
            raise StartupError(f"PUNA_REDIS_URL: {error}") from error
        self._clock = clock
        self._versions: dict[tuple[str, str], int] = {}  # by hash and name in it
        self._writes = 0  # of all, as the store last counted them
        self._lost_writes = False
        self._failures = 0
        self._closed_until_s = 0.0
        self._acquire = self._redis.register_script(ACQUIRE)
        self._release = self._redis.register_script(RELEASE)
        self._write = self._redis.register_script(WRITE)

    async def connect(self) -> None:
        """Connect, which checks the server.

        Raises:
            VulnerableServerError: it is not to be used.
        """
        try:
            await self._ask("ping", self._redis.ping)
        except StoreUnavailableError as error:
            if isinstance(error.__cause__, VulnerableServerError):
                raise error.__cause__ from None
            raise

    async def acquire(self, leader_id: str, *, high_water: int) -> LeaderLease:
        """Take or renew the lease."""
        keys = [LEADER, FENCE, SCHEMA, WRITES]
        ttl_ms = round(LEASE_TTL_S * 1000)
        arguments: list[str | int] = [leader_id, ttl_ms, high_water, SCHEMA_VERSION, FENCE_AHEAD_MS_MAX]
        acquire, known = lambda: self._acquire(keys=keys, args=arguments), self._writes
        status, holder, fence, set_aside, writes = await self._ask("acquire", acquire)
        if status == -1:
            raise StoreUnavailableError(f"state store has schema {holder}, this build speaks {SCHEMA_VERSION}")
        if set_aside:
            log.warning("fence.set_aside", number=set_aside[:FENCE_CHARACTERS_MAX], fence=fence)
        if status != 1:
            return LeaderLease(is_mine=False, holder=holder, fence=0)
        self._count_writes(int(writes), at_least=known)
        lost, self._lost_writes = self._lost_writes, False
        return LeaderLease(is_mine=True, holder=holder, fence=int(fence), lost_writes=lost)

    async def release(self, leader_id: str) -> None:
        """Give the lease back, if it is ours."""
        await self._ask("release", lambda: self._release(keys=[LEADER], args=[leader_id]))

    async def load(self) -> tuple[DesiredPlacement, ...]:
        """Read every desired placement. An unreadable one is skipped and left there."""
        return tuple((await self._load(PLACEMENTS, decode)).values())

    async def load_constraints(self) -> dict[str, Constraints]:
        """Load the constraints that commands have set, by model name. An unreadable one stays stored."""
        return await self._load(CONSTRAINTS, decode_constraints)

    async def load_margins(self) -> Margins:
        """Load the margins that leaders have learned. An unreadable one stays stored."""
        margins = NO_MARGINS
        for piece in (await self._load(MARGINS, _decode_margins)).values():
            margins = margins.with_all(piece)
        return margins

    async def load_drains(self) -> dict[str, float]:
        """Load the time that sequences may take to end, by drained node. An unreadable one stays stored."""
        return await self._load(DRAINS, lambda record: float(record["budget_s"]))

    async def load_aliases(self) -> dict[str, ModelAlias] | None:
        """Read the aliases by key; None: none was ever written here. An unreadable one is skipped and left there."""
        records = await self._load(ALIASES, _decode_alias)
        if not records:
            return None
        return {key: alias for key, alias in records.items() if alias is not None}

    async def load_revocations(self) -> dict[str, int]:
        """Load the moments before which certificates count no more, by removed node. An unreadable one stays stored."""
        return await self._load(REMOVED, lambda record: int(record["issued_before_unix_ms"]))

    async def save_revocation(self, fence: int, node_id: str, issued_before_unix_ms: int) -> None:
        """Write down that a node was removed; raises as `write`."""
        await self._put(fence, REMOVED, node_id, {"issued_before_unix_ms": issued_before_unix_ms})

    async def _load(self, key: str, read: Callable[[Record], Result]) -> dict[str, Result]:
        stored: dict[str, str] = await self._ask("load", lambda: self._redis.hgetall(key))
        self._versions = {known: version for known, version in self._versions.items() if known[0] != key}
        records: dict[str, Result] = {}
        for name, text in stored.items():
            try:
                fields = orjson.loads(text)
                self._versions[key, name] = int(fields["version"])
                records[name] = read(fields["record"])
            except UNREADABLE as error:
                log.warning("store.unreadable_record", key=key, name=name, text=str(error))
        return records

    async def write(self, effect: Write) -> None:
        """Write what an effect holds, or forget what it no longer has, if its fence is still current.

        Raises:
            StaleFence: it is not, or another scheduler wrote the record.
        """
        fence = effect.fence
        match effect:
            case SaveDesired():
                await self._put(fence, PLACEMENTS, effect.record.placement_id, encode(effect.record))
            case RemoveDesired():
                if (PLACEMENTS, effect.placement_id) in self._versions:
                    await self._put(fence, PLACEMENTS, effect.placement_id, None)
            case SaveConstraints():
                written = None if effect.constraints is None else written_constraints(effect.constraints)
                await self._put(fence, CONSTRAINTS, effect.model_name, written)
            case SaveMargins():
                for name, record in _encode_margins(effect.margins).items():
                    await self._put(fence, MARGINS, name, record)
            case SaveDrain():
                drain = None if effect.budget_s is None else {"budget_s": effect.budget_s}
                await self._put(fence, DRAINS, effect.node_id, drain)
            case SaveAlias():
                if (ALIASES, ALIASES_MARK) not in self._versions:
                    await self._put(fence, ALIASES, ALIASES_MARK, {})
                alias = None if effect.alias is None else asdict(effect.alias)
                await self._put(fence, ALIASES, effect.key, alias)

    async def _put(self, fence: int, key: str, name: str, record: Record | None) -> None:
        """Write a record; None: remove it."""
        text = "" if record is None else orjson.dumps(record, option=orjson.OPT_SORT_KEYS).decode()
        keys = [FENCE, key, WRITES]
        arguments: list[str | int] = [fence, name, self._versions.get((key, name), 0), text]
        known = self._writes
        status, answer, *writes = await self._ask("write", lambda: self._write(keys=keys, args=arguments))
        if status == 0:
            raise StaleFence(f"the state store is at fence {answer or 'none'}, not {fence}")
        if status == -1:
            raise StaleFence(f"{name} was written by another scheduler")
        self._count_writes(int(writes[0]), at_least=known + 1)
        if text:
            self._versions[key, name] = int(answer)
        else:
            self._versions.pop((key, name), None)

    def _count_writes(self, writes: int, *, at_least: int) -> None:
        """Compare the store's count with what was known when it was asked; answers may come in another order."""
        is_lost = writes < at_least
        self._lost_writes |= is_lost
        self._writes = writes if is_lost else max(self._writes, writes)

    async def close(self) -> None:
        """Close all connections."""
        await self._redis.aclose()

    async def _ask(self, name: str, command: Callable[[], Awaitable[Result]]) -> Result:
        if self._clock.now_s() < self._closed_until_s:
            metrics.STORE_CALLS.labels(command=name, outcome="skipped").inc()
            raise StoreUnavailableError("state store unreachable: waiting before the next attempt")
        try:
            with metrics.STORE_CALL_S.labels(command=name).time():
                answer = await answer_within(command, 2 * COMMAND_TIMEOUT_S)  # a connect and a command
        except UNREACHED as error:
            metrics.STORE_CALLS.labels(command=name, outcome="failed").inc()
            self._failed()
            text = str(error) or type(error).__name__
            raise StoreUnavailableError(f"state store unreachable: {text}") from error
        self._failures = 0
        metrics.STORE_UP.set(1)
        metrics.STORE_CALLS.labels(command=name, outcome="ok").inc()
        return answer

    def _failed(self) -> None:
        metrics.STORE_UP.set(0)
        self._failures += 1
        if self._failures >= CIRCUIT_FAILURES:
            self._closed_until_s = self._clock.now_s() + CIRCUIT_OPEN_S
