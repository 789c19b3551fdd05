-- later: entries go from a worker's hands to the delayed set, due after a wait by Redis' own clock.
-- If one of them is the earliest now, schedulers are woken.
-- KEYS[1] queue:<queue>:processing:<worker>   KEYS[2] queue:<queue>:delayed
-- ARGV[1] the channel, ARGV[2] what is published there   then pairs: entry, seconds to wait
-- Returns how many.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local head = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]
local earliest = nil
for i = 3, #ARGV, 2 do
  local due = now + tonumber(ARGV[i + 1])
  redis.call('ZADD', KEYS[2], string.format('%.6f', due), ARGV[i])
  redis.call('LREM', KEYS[1], 1, ARGV[i])
  if not earliest or due < earliest then earliest = due end
end
if earliest and (not head or earliest < tonumber(head)) then
  redis.call('PUBLISH', ARGV[1], ARGV[2])
end
return (#ARGV - 2) / 2
