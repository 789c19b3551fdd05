-- probe: a mark at the tail of a queue, so that we learn when all before it has been taken.
-- One at a time, and none behind another: a queue that nobody serves does not fill with probes.
-- KEYS[1] queue:<queue>   KEYS[2] queue:<queue>:probe   ARGV[1] the probe   ARGV[2] seconds kept
-- Returns 1 if it was pushed, 0 if one is under way.
if redis.call('SET', KEYS[2], ARGV[1], 'NX', 'EX', ARGV[2]) then
  local last = redis.call('LINDEX', KEYS[1], -1)
  if last and string.sub(last, 1, 6) == 'probe.' then redis.call('RPOP', KEYS[1]) end
  redis.call('RPUSH', KEYS[1], ARGV[1])
  return 1
end
return 0
