-- ack: entries leave a worker's hands; their runs have ended or belong to somebody else.
-- KEYS[1] queue:<queue>:processing:<worker>   KEYS[2] queue:<queue>:done
-- ARGV[1] how many ended runs are kept in done (0: none)   ARGV[2…] entries
-- Returns how many were there.
local gone, kept = 0, tonumber(ARGV[1])
for i = 2, #ARGV do
  gone = gone + redis.call('LREM', KEYS[1], 1, ARGV[i])
  if kept > 0 then redis.call('LPUSH', KEYS[2], ARGV[i]) end
end
if kept > 0 then redis.call('LTRIM', KEYS[2], 0, kept - 1) end
return gone
