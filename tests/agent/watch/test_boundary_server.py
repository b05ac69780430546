"""The boundary's server as the agent runs it."""

import os
import selectors
import socket
from pathlib import Path

import pytest

from oci_hook.agent.watch.boundary_server import BoundaryServer
from oci_hook.boundary import protocol

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


def test_a_boundary_server_that_ends_during_a_request_ends_no_agent(tmp_path: Path) -> None:
    """The selector may see its end and the request's in one look."""
    taken: list[object] = []
    with selectors.DefaultSelector() as selector, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(protocol.path(str(tmp_path)))
        listener.listen()
        server = BoundaryServer(selector)
        server.state, server._state_dir = "ok", str(tmp_path)
        server.ask({"do": "list"}, taken.append, 0.0)
        listener.accept()[0].close()
        [(key, _)] = selector.select(10)
        server.stop("its process ended")
        key.data(0.0)
        assert server.state == "down" and not taken
