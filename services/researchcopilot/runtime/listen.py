"""Bound sockets for what listens: the api and the health server, by the same rules.

`*` is every address of this machine, IPv6 and IPv4 in one socket, or IPv4 alone where the kernel
has no IPv6: right on a cluster of either kind and of both. So is `::`, but it insists on IPv6.
"""

import os
import socket

from researchcopilot.core.errors import ConfigError

ALL = "*"


def bind(host: str, port: int, setting: str) -> socket.socket:
    """A bound socket that does not listen yet. Raises ConfigError: `setting`_HOST or _PORT, where
    `setting` is how both begin (RC_API)."""
    if host == ALL:
        host = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(
            f"{setting}_HOST={host} cannot be used ({error.strerror}). "
            "Give an address of this machine: 127.0.0.1, or * for all."
        ) from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and host == "::":
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise taken(host, port, setting, error) from error
    return bound


def taken(host: str, port: int, setting: str, error: OSError) -> ConfigError:
    return ConfigError(
        f"{setting}_PORT={port} on {host} cannot be used ({os.strerror(error.errno or 0)}). "
        "Give another port, or 0 for a free one."
    )
