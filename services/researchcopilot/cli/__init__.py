"""The command line: one small file for each part that is not a service."""
