"""Scripts that Redis runs in one step for keys, quotas and shares.

The keys of one script share a hash tag, so that a cluster keeps them on one node. Times are those of Redis: gateways
need not agree on theirs.
"""

REVISION = "{puna-keys}:revision"
MADE = "{puna-keys}:made"
REVOKED = "{puna-keys}:revoked"
GATEWAYS = "{puna-keys}:gateways"
USED = "{puna-keys}:used"
SHARES = "{puna-shares}:reports"


def quota_keys(key_id: str, request_id: str) -> list[str]:
    """Return the Redis keys of a quota, its running requests, and one request's share."""
    tag = f"{{puna-quota:{key_id}}}"
    return [f"{tag}:levels", f"{tag}:running", f"{tag}:held:{request_id}"]


# Say that a gateway is there, when keys were last used, and get the records if they changed.
# KEYS: revision, made, revoked, gateways, used. ARGV: known revision, gateway, silence ms, then pairs of id and time.
LOOK = """
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', now - tonumber(ARGV[3]))
redis.call('ZADD', KEYS[4], now, ARGV[2])
for i = 4, #ARGV, 2 do
  local known = tonumber(redis.call('HGET', KEYS[5], ARGV[i]) or '0')
  if tonumber(ARGV[i + 1]) > known then redis.call('HSET', KEYS[5], ARGV[i], ARGV[i + 1]) end
end
local revision = redis.call('GET', KEYS[1]) or ''
local gateways = redis.call('ZCARD', KEYS[4])
if revision ~= '' and revision == ARGV[1] then return {revision, gateways} end
return {revision, gateways, redis.call('HGETALL', KEYS[2]), redis.call('HGETALL', KEYS[3])}
"""

# Add records; none is ever replaced. With an expected revision only if no other writer was faster; else returns 0.
# KEYS: revision, made, revoked. ARGV: expected revision or '*', new revision, number of made, then pairs.
ADD = """
local revision = redis.call('GET', KEYS[1]) or ''
if ARGV[1] ~= '*' and ARGV[1] ~= revision then return 0 end
local made = tonumber(ARGV[3])
local added = 0
for i = 0, (#ARGV - 3) / 2 - 1 do
  local name = KEYS[2]
  if i >= made then name = KEYS[3] end
  added = added + redis.call('HSETNX', name, ARGV[4 + 2 * i], ARGV[5 + 2 * i])
end
if added > 0 then redis.call('SET', KEYS[1], ARGV[2]) end
return 1
"""

# Take of a quota: all of it, or nothing. Each bucket is the time at which it is full again (GCRA).
# KEYS: levels, running, held. ARGV: request, lease ms, most requests at once or 0, then for each bucket its name,
# limit, period ms, and amount. Returns what is short ('' for nothing), for how many ms, and each bucket's ms to full.
TAKE = """
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
local most = tonumber(ARGV[3])
local short, wait = '', 0
if most > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
  if not redis.call('ZSCORE', KEYS[2], ARGV[1]) and redis.call('ZCARD', KEYS[2]) >= most then
    short, wait = 'concurrency', 1000
  end
end
local full, costs, amounts = {}, {}, {}
for i = 4, #ARGV, 4 do
  local limit, period, amount = tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  amount = math.min(amount, limit)
  local at = math.max(tonumber(redis.call('HGET', KEYS[1], ARGV[i]) or '0'), now)
  local cost = amount * period / limit
  full[#full + 1], costs[#costs + 1], amounts[#amounts + 1] = at, cost, amount
  local late = at + cost - now - period
  if amount > 0 and late > 0.001 and short == '' then short, wait = ARGV[i], late end
end
local left = {}
for n = 1, #full do
  if short == '' and amounts[n] > 0 then
    local name = ARGV[4 * n]
    full[n] = full[n] + costs[n]
    redis.call('HSET', KEYS[1], name, string.format('%.3f', full[n]))
    redis.call('HINCRBY', KEYS[3], name, amounts[n])
    redis.call('PEXPIRE', KEYS[3], 7200000)
  end
  left[n] = string.format('%.3f', full[n] - now)
end
redis.call('PEXPIRE', KEYS[1], 172800000)
if short == '' and most > 0 then
  redis.call('ZADD', KEYS[2], now + tonumber(ARGV[2]), ARGV[1])
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
return {short, string.format('%.3f', wait), left}
"""

# A request is over: give its place back, and put what it held right. Once; a second time nothing is held any more.
# KEYS: as TAKE. ARGV: request, tokens used, then for each bucket of tokens its name, limit and period ms.
SETTLE = """
redis.call('ZREM', KEYS[2], ARGV[1])
for i = 3, #ARGV, 3 do
  local held = redis.call('HGET', KEYS[3], ARGV[i])
  local at = redis.call('HGET', KEYS[1], ARGV[i])
  if held and at then
    local more = (tonumber(ARGV[2]) - tonumber(held)) * tonumber(ARGV[i + 2]) / tonumber(ARGV[i + 1])
    redis.call('HSET', KEYS[1], ARGV[i], string.format('%.3f', tonumber(at) + more))
  end
end
redis.call('DEL', KEYS[3])
return 1
"""

# Requests that still run keep their places. KEYS: levels, running, held (of anyone). ARGV: lease ms, then requests.
RENEW = """
local time = redis.call('TIME')
local until_ms = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000 + tonumber(ARGV[1])
for i = 2, #ARGV do redis.call('ZADD', KEYS[2], until_ms, ARGV[i]) end
redis.call('PEXPIRE', KEYS[2], ARGV[1])
return 1
"""

# Replace the report of a gateway, and get those of the others; a gateway that was silent for too long has none.
# KEYS: shares. ARGV: gateway, silence ms, report. Returns pairs of gateway and report.
SHARE = """
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f ', now) .. ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local all, others = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #all, 2 do
  local written, report = string.match(all[i + 1], '^(%d+) (.*)$')
  if not written or now - tonumber(written) > tonumber(ARGV[2]) then
    redis.call('HDEL', KEYS[1], all[i])
  elseif all[i] ~= ARGV[1] then
    others[#others + 1], others[#others + 2] = all[i], report
  end
end
return others
"""
