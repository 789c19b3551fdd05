-- release: entries go from a worker's hands back to the head of their queue.
-- Given oldest first, so that the oldest ends up at the head.
-- KEYS[1] queue:<queue>:processing:<worker>   KEYS[2] queue:<queue>   ARGV entries
-- Returns how many were released.
for i = #ARGV, 1, -1 do
  redis.call('LREM', KEYS[1], 1, ARGV[i])
  redis.call('LPUSH', KEYS[2], ARGV[i])
end
return #ARGV
