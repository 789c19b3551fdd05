-- Time passes in Redis too: what is due lies so much nearer, and marks are so much older.
-- KEYS[1] queue:<queue>   KEYS[2…] hands: queue:<queue>:processing:<worker>
-- ARGV[1] whole seconds
-- Returns 1.
local seconds = tonumber(ARGV[1])
local delayed = redis.call('ZRANGE', KEYS[1] .. ':delayed', 0, -1, 'WITHSCORES')
for i = 1, #delayed, 2 do
  redis.call('ZINCRBY', KEYS[1] .. ':delayed', -seconds, delayed[i])
end
local function older(mark)
  return string.format('%.0f', tonumber(mark) - seconds * 1000000)
end
for _, list in ipairs(KEYS) do
  for i, entry in ipairs(redis.call('LRANGE', list, 0, -1)) do
    if string.sub(entry, 1, 6) == 'probe.' then
      redis.call('LSET', list, i - 1, 'probe.' .. older(string.sub(entry, 7)))
    end
  end
end
local under_way = redis.call('GET', KEYS[1] .. ':probe')
if under_way then
  local left = redis.call('TTL', KEYS[1] .. ':probe') - seconds
  if left > 0 then
    redis.call('SET', KEYS[1] .. ':probe', 'probe.' .. older(string.sub(under_way, 7)), 'EX', left)
  else
    redis.call('DEL', KEYS[1] .. ':probe')
  end
end
local probed = redis.call('GET', KEYS[1] .. ':probed')
if probed then redis.call('SET', KEYS[1] .. ':probed', older(probed), 'EX', 86400) end
return 1
