-- due: entries whose time has come go from the delayed set to the tail of their queue, at once.
-- KEYS[1] queue:<queue>:delayed   KEYS[2] queue:<queue>   ARGV[1] how many at most
-- Returns {microseconds until the next is due or -1, how many are due and still there,
--          then for each that was moved the microseconds that it was late, the latest first}.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local found = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.6f', now),
                         'WITHSCORES', 'LIMIT', 0, tonumber(ARGV[1]))
local answer = {-1, 0}
for i = 1, #found, 2 do
  redis.call('RPUSH', KEYS[2], found[i])
  redis.call('ZREM', KEYS[1], found[i])
  answer[#answer + 1] = math.floor((now - tonumber(found[i + 1])) * 1000000)
end
local next = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if next[2] then answer[1] = math.max(0, math.floor((tonumber(next[2]) - now) * 1000000)) end
if answer[1] == 0 then
  answer[2] = redis.call('ZCOUNT', KEYS[1], '-inf', string.format('%.6f', now))
end
return answer
