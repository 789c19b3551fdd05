"""A way round to one server over a line of the proxy: for tests of a client whose connection is
cut, slow or silent. The server itself does not notice, and others reach it as ever.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from tests.chaos.proxy import Line, Network


@contextmanager
def line_to(url: str) -> Iterator[Line]:
    """A line to the server of this URL, until the end of the block."""
    port = port_of(url)
    network = Network()
    try:
        yield network.line("test", "server", lambda: port)
    finally:
        network.close()


def over(line: Line, url: str) -> str:
    """The same URL over this line."""
    address = urlsplit(url)
    user_and_host = address.netloc.rpartition(":")[0]
    return address._replace(netloc=f"{user_and_host}:{line.port}").geturl()


def port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None, url
    return port
