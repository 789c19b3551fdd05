"""The embedded stack for one machine: real Postgres, real Valkey and every part as its own process.

Plain blocking code: it starts processes, waits for them and ends them, and does nothing else.
Two promises: no port is fixed, and nothing is left behind. Every process that is started here
is tethered to the one that started it (`tether`), and a small undertaker (`guard`) outlives a
`kill -9` of it, so that also a temporary folder goes away.
"""
