"""Who listens on all addresses is reached by IPv4 and by IPv6, on clusters of either kind."""

import socket
from urllib.request import urlopen

import pytest

from researchcopilot.core.errors import ConfigError
from researchcopilot.dev import ports
from researchcopilot.runtime.health import Health
from researchcopilot.runtime.listen import bind

BOTH = ("127.0.0.1", "[::1]")
no_ipv6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this kernel has no IPv6")


def reached(health: Health) -> list[str]:
    found = []
    for host in BOTH:
        try:
            with urlopen(f"http://{host}:{health.port}/livez", timeout=5) as answer:
                assert answer.read() == b"ok\n"
                found.append(host)
        except OSError:
            continue
    return found


@no_ipv6
@pytest.mark.parametrize(
    ("host", "by"),
    [("*", BOTH), ("::", BOTH), ("0.0.0.0", BOTH[:1]), ("127.0.0.1", BOTH[:1]), ("::1", BOTH[1:])],
)
def test_probes_reach_it(host: str, by: tuple[str, ...]) -> None:
    health = Health()
    health.start(host, 0)
    try:
        assert reached(health) == list(by)
    finally:
        health.stop()


def test_all_is_ipv4_where_there_is_no_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with bind("*", 0, "RC_API") as bound:
        assert bound.family is socket.AF_INET


def test_what_cannot_be_had_is_named_with_its_setting() -> None:
    with bind("127.0.0.1", 0, "RC_API") as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"RC_HEALTH_PORT={port} on 127.0.0.1 .*another"):
            Health().start("127.0.0.1", port)
        assert not ports.is_free("*", port)
    with pytest.raises(ConfigError, match=r"RC_HEALTH_HOST=no\.such\.\S+ cannot be used"):
        Health().start("no.such.host.invalid", 0)
