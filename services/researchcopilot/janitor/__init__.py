"""The janitor: takes back what died and mends Redis from Postgres. One is enough, two are harmless.

One small file for each duty. A duty is a loop body: it looks, acts in bounded batches, and returns;
`main` repeats it. Duties show their last success as a metric; they are not schedules.
"""
