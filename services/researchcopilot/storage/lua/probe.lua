-- probe: a mark at the tail of a queue, so that we learn when all before it has been taken.
-- One at a time: a long queue, or one that nobody serves, does not fill with probes.
-- KEYS[1] queue:<queue>   KEYS[2] queue:<queue>:probe   ARGV[1] the probe   ARGV[2] seconds kept
-- Returns 1 if it was pushed, 0 if one is under way.
if redis.call('SET', KEYS[2], ARGV[1], 'NX', 'EX', ARGV[2]) then
  redis.call('RPUSH', KEYS[1], ARGV[1])
  return 1
end
return 0
