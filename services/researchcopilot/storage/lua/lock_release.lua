-- lock_release: give a lock back, if it is still this holder's, and wake one of those who wait.
-- KEYS[1] lock:<name>   KEYS[2] lock:<name>:free
-- ARGV[1] the holder's token   ARGV[2] milliseconds that the hint is kept
-- Returns 1 if it was given back, 0 if it was not this holder's.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
-- One entry wakes one waiter, the one that has waited longest.
if redis.call('LLEN', KEYS[2]) == 0 then redis.call('RPUSH', KEYS[2], 1) end
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return 1
