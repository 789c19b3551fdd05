"""Instruments: log, metrics, loops, grouping, health. They know no product words."""
