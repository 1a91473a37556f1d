"""What the tests look for in the broker that they bring, which does not run: where it listens, and its end."""

from types import SimpleNamespace

server = SimpleNamespace(socket=SimpleNamespace(getsockname=lambda: ("127.0.0.1", 1883)), shutdown=lambda: None)
listeners = SimpleNamespace(TCPListeners=SimpleNamespace(server=server))


def run(config):
    """The node is there already."""
