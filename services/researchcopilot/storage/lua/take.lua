-- take: up to n entries from the head of a queue into this worker's hands, at once.
-- KEYS[1] queue:<queue>   KEYS[2] queue:<queue>:processing:<worker>   ARGV[1] n
-- Returns the entries, oldest first.
local taken = {}
for i = 1, tonumber(ARGV[1]) do
  local entry = redis.call('LMOVE', KEYS[1], KEYS[2], 'LEFT', 'RIGHT')
  if not entry then break end
  taken[i] = entry
end
return taken
