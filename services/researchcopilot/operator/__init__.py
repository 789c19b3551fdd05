"""The operator: what Kubernetes knows before a lease can tell, and runs and schedules as objects.

It only accelerates (a dead Pod costs a second) and projects (objects of the cluster show rows). It
decides nothing that the rows do not: with it switched off everything still works, later. Pods are
only read; the one thing ever written to them, and only if asked for, is their deletion cost.
"""
