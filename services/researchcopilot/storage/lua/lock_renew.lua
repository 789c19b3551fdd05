-- lock_renew: the lock lasts longer, if it is still this holder's.
-- KEYS[1] lock:<name>   ARGV[1] the holder's token   ARGV[2] milliseconds from now
-- Returns 1 if it was renewed, 0 if it was not this holder's.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
