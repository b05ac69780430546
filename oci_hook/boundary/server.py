"""The boundary's server, `python -m oci_hook.boundary.server PREFIX`: NVML held open, requests at STATE/boundary.sock.

The agent starts it. Without it every operation starts NVML anew (alone.py), which takes long on real machines. It ends
by itself when its parent does, when its standard input ends, when the driver is exchanged, or when an operation takes
longer than HANGS: NVML then hangs, and callers go on without the server. It must see cgroups as the host does: in a
container, give it the host's cgroup namespace.
"""

import os
import selectors
import socket
import sys
import threading
import time

from oci_hook.boundary import cgroups, limit_records, protocol
from oci_hook.boundary.keeper import Keeper
from oci_hook.boundary.nvml_limits import LimitError, NvmlLimits, open_nvml
from oci_hook.config import settings as node_settings
from oci_hook.linux import unix_socket
from oci_hook.linux.lock import own_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_hook.core.inventory import Inventory

CLIENTS_MAX = 256
SILENT = 5.0  # seconds until a client that says nothing is left
HANGS = 8.0  # seconds


class OpenNvml:
    """NVML, opened with the first use."""

    def __init__(self) -> None:
        self._nvml: NvmlLimits | None = None
        self._stamp: object = None

    def renew(self) -> None:
        """Open NVML anew with the next use: what it answered may come from a driver that was reset."""
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None

    def __call__(self, inventory: "Inventory") -> NvmlLimits:
        if self._nvml is not None and inventory.stamp != self._stamp:
            os._exit(0)  # the old library is in this process for good; the agent starts another
        if self._nvml is None:
            self._nvml = open_nvml(inventory)
            self._stamp = inventory.stamp
        return self._nvml


class LimitServer:
    """prefix: of the install. Raises NodeError GH-303, SettingsError, OSError if it cannot listen."""

    def __init__(self, prefix: str) -> None:
        settings = node_settings.load(prefix)
        own_dir(settings.state_dir)
        own_dir(limit_records.folder(settings.state_dir))
        self._nvml = OpenNvml()
        self.keeper = Keeper(lambda: node_settings.load(prefix), self._nvml)
        self.busy_since = 0.0
        self._listener = _listen(protocol.path(settings.state_dir), limit_records.folder(settings.state_dir))
        self._clients: dict[socket.socket, float] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)

    def close(self) -> None:
        for client in list(self._clients):
            self._leave(client)
        self._listener.close()

    def step(self, seconds: float) -> None:
        """Serve whoever asks within so many seconds."""
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.fileobj, socket.socket):
                self._serve(key.fileobj)
        now = time.monotonic()
        for client, since in list(self._clients.items()):
            if now - since > SILENT:
                self._leave(client)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:  # it has gone, or there are no more descriptors
            return
        if len(self._clients) >= CLIENTS_MAX or unix_socket.peer_uid(client) != 0:
            client.close()
            return
        client.setblocking(False)
        self._clients[client] = time.monotonic()
        self._selector.register(client, selectors.EVENT_READ)

    def _serve(self, client: socket.socket) -> None:
        """One request; then the client is left. An answer that does not fit into its buffer is not waited for."""
        try:
            data = client.recv(protocol.REQUEST_MAX + 1)
            if 0 < len(data) <= protocol.REQUEST_MAX:
                self.busy_since = time.monotonic()
                answer = protocol.answer(self.keeper, data)
                client.send(answer)
                if not answer.startswith(protocol.OK) and b'"code":0}' not in answer:
                    self._nvml.renew()
        except OSError:
            pass
        finally:
            self.busy_since = 0.0
            self._leave(client)

    def _leave(self, client: socket.socket) -> None:
        self._selector.unregister(client)
        del self._clients[client]
        client.close()


def _listen(path: str, folder: str) -> socket.socket:
    """A listening socket that only root can open. It takes the path over from a server before it. folder: where it is
    made, for root alone."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    temporary = f"{folder}/{os.getpid()}.sock"
    try:
        os.unlink(temporary)
    except FileNotFoundError:
        pass
    listener.bind(temporary)
    os.chmod(temporary, 0o600)
    listener.listen(CLIENTS_MAX)
    os.rename(temporary, path)
    return listener


def _watch(server: LimitServer) -> None:
    """End the process when an operation hangs in the driver; ctypes lets this thread run meanwhile."""
    while True:
        time.sleep(0.5)
        since = server.busy_since
        if since and time.monotonic() - since > HANGS:
            os._exit(3)


def _end_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


def main(arguments: list[str]) -> int:
    parent = os.getppid()
    if not cgroups.is_pid_1s_namespace():
        sys.stderr.write("this process has a cgroup namespace of its own and cannot name the containers' cgroups\n")
        return 4
    server = LimitServer(arguments[0])
    threading.Thread(target=_watch, args=(server,), daemon=True).start()
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    try:
        server.keeper.warm()
    except LimitError as e:
        sys.stderr.write(f"{e}\n")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while os.getppid() == parent:
        server.step(1.0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
