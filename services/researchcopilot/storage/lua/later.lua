-- later: entries go from a worker's hands to the delayed set, due after a wait by Redis' own clock.
-- KEYS[1] queue:<queue>:processing:<worker>   KEYS[2] queue:<queue>:delayed
-- ARGV pairs: entry, seconds to wait. Returns how many.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
for i = 1, #ARGV, 2 do
  redis.call('ZADD', KEYS[2], string.format('%.6f', now + tonumber(ARGV[i + 1])), ARGV[i])
  redis.call('LREM', KEYS[1], 1, ARGV[i])
end
return #ARGV / 2
