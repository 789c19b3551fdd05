"""Tests with the real Prometheus and promtool: kept for `make monitoring`, which installs them."""

import os

if not os.environ.get("TESTS_MONITORING"):
    collect_ignore_glob = ["test_*.py"]
