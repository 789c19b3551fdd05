-- probed: a worker has taken a probe: all that stood before it in the queue was taken too.
-- KEYS[1] queue:<queue>:processing:<worker>   KEYS[2] queue:<queue>:probe
-- KEYS[3] queue:<queue>:probed   ARGV[1] the probe   ARGV[2] its time (microseconds, decimal)
-- Returns 1. Times are compared as numbers below 2^53.
redis.call('LREM', KEYS[1], 1, ARGV[1])
if redis.call('GET', KEYS[2]) == ARGV[1] then redis.call('DEL', KEYS[2]) end
local last = redis.call('GET', KEYS[3])
if not last or tonumber(last) < tonumber(ARGV[2]) then
  redis.call('SET', KEYS[3], ARGV[2], 'EX', 86400)
end
return 1
