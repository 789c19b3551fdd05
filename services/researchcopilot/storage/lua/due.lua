-- due: entries whose time has come go from the delayed set to the tail of their queue, at once.
-- KEYS[1] queue:<queue>:delayed   KEYS[2] queue:<queue>   ARGV[1] how many at most
-- Returns {moved, microseconds until the next is due or -1, microseconds the oldest was late}.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local found = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.6f', now),
                         'WITHSCORES', 'LIMIT', 0, tonumber(ARGV[1]))
local late = 0
for i = 1, #found, 2 do
  redis.call('RPUSH', KEYS[2], found[i])
  redis.call('ZREM', KEYS[1], found[i])
end
if #found > 0 then late = math.floor((now - tonumber(found[2])) * 1000000) end
local next = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local wait = -1
if next[2] then wait = math.max(0, math.floor((tonumber(next[2]) - now) * 1000000)) end
return {#found / 2, wait, late}
