"""Scripts that Redis runs in one step. All keys share the hash tag {sched}, so that a cluster keeps them on one node.

{sched}:leader      who leads; expires by itself
{sched}:fence       the highest fence given out; only grows
{sched}:placements  hash: placement id → {"version": n, "record": {…}}
{sched}:constraints hash: model name → {"version": n, "record": {…}}
{sched}:margins     hash: what it was learned about → {"version": n, "record": {…}}
{sched}:drains      hash: node id → {"version": n, "record": {"budget_s": n}}
{sched}:aliases     hash: alias → {"version": n, "record": {"name": …, "target": …}}; "" → an empty record, which
                    distinguishes a store without aliases from one that has lost them
{sched}:schema      version of all of this
"""

LEADER = "{sched}:leader"
FENCE = "{sched}:fence"
PLACEMENTS = "{sched}:placements"
CONSTRAINTS = "{sched}:constraints"
MARGINS = "{sched}:margins"
DRAINS = "{sched}:drains"
ALIASES = "{sched}:aliases"
ALIASES_MARK = ""  # no alias has this name
SCHEMA = "{sched}:schema"

SCHEMA_VERSION = "1"

# KEYS leader, fence, schema · ARGV caller, ttl_ms, caller's high-water, schema version
# → {1, caller, fence} led or renewed; {0, holder, fence} another scheduler leads; {-1, schema, ""} not our schema.
# The time floor keeps the fence rising after the counter is lost. "%.0f": Lua would write large numbers as 1.7e+12.
ACQUIRE = """
local schema = redis.call('GET', KEYS[3])
if schema and schema ~= ARGV[4] then return {-1, schema, ''} end
local holder = redis.call('GET', KEYS[1])
local stored = tonumber(redis.call('GET', KEYS[2]) or '0')
local high_water = tonumber(ARGV[3])
if holder and holder ~= ARGV[1] then return {0, holder, string.format('%.0f', stored)} end
if holder and stored > 0 and stored >= high_water then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return {1, holder, string.format('%.0f', stored)}
end
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local fence = string.format('%.0f', math.max(stored + 1, now_ms, high_water + 1))
redis.call('SET', KEYS[2], fence)
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('SET', KEYS[3], ARGV[4])
return {1, ARGV[1], fence}
"""

# KEYS leader · ARGV caller. Compare and delete.
RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""

# KEYS fence, hash · ARGV fence, name in the hash, expected version, record ("" removes)
# → {1, version} written; {0, fence} the fence is not current; {-1, version} another scheduler wrote.
WRITE = """
local fence = redis.call('GET', KEYS[1])
if fence ~= ARGV[1] then return {0, fence or ''} end
local stored = redis.call('HGET', KEYS[2], ARGV[2])
local version = 0
if stored then version = cjson.decode(stored)['version'] end
if version ~= tonumber(ARGV[3]) then return {-1, string.format('%.0f', version)} end
if ARGV[4] == '' then
  redis.call('HDEL', KEYS[2], ARGV[2])
  return {1, '0'}
end
local next_version = string.format('%.0f', version + 1)
redis.call('HSET', KEYS[2], ARGV[2], '{"version":' .. next_version .. ',"record":' .. ARGV[4] .. '}')
return {1, next_version}
"""
