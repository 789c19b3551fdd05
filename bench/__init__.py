"""Benchmarks: what ARCHITECTURE.md states about speed and memory is measured here, not asserted.

    make bench                       all of it, to bench/results.json
    make bench ARGS="drain accept"   some of it

Each figure is the median of a few rounds on real servers with fsync and synchronous_commit on, all
parts on this one machine. Ratios are against something measured in the same run.
"""
