"""Free ports. Below the range that the kernel gives to outgoing connections: a client that knocks
at a server that is down could otherwise be given that very port, and the server not get it back.
"""

import random
import socket
from pathlib import Path

from researchcopilot.runtime.listen import ALL

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # As servers do: a port whose last connections linger is free all the same.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("" if host == ALL else host, port))
        except OSError:
            return False
    return True


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on now. Another may take it first, so starters try again."""
    for _ in range(200):
        port = random.randrange(10_240, _ephemeral_start())
        if is_free(host, port):
            return port
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _ephemeral_start() -> int:
    try:
        start = int(_RANGE.read_text().split()[0])
    except (OSError, ValueError):
        start = 32_768
    return start if start > 12_000 else 32_768
