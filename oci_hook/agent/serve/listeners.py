"""The places at which the agent answers: the page's address, and the socket that commands ask at."""

import contextlib
import grp
import os
import selectors
import socket
from collections.abc import Callable

from oci_hook.agent import options
from oci_hook.agent.node_state import NodeState
from oci_hook.agent.serve.http import Page, WebServer, listen
from oci_hook.core.layout import AGENT_SOCKET
from oci_hook.linux import unix_socket

PAGE, SOCKET = "page", "socket"  # as they are called in the agent's problems


class Listeners:
    """Each is opened anew at every `open` while somebody else has its place: what is served is for show, and no reason to
    do nothing else. token: of the page's address."""

    def __init__(
        self,
        node: NodeState,
        selector: selectors.BaseSelector,
        token: str,
        pages: dict[str, Page],
        healthy: Callable[[], bool],
    ) -> None:
        self._node, self._selector, self._token, self._pages, self._healthy = node, selector, token, pages, healthy
        self._servers: dict[str, WebServer] = {}
        self._socket, self._inode = "", 0  # its path, and what is there while it is ours
        self._lacks_group = False

    def open(self) -> None:
        """Also follows the state directory of the settings."""
        here = self._node.state_dir + AGENT_SOCKET
        if SOCKET in self._servers and (here != self._socket or not self._is_there() or self._group_came()):
            self._close_socket()
        if SOCKET not in self._servers:
            self._node.problem(SOCKET, self._open_socket(here))
        if PAGE not in self._servers and self._node.options.address != "none":
            self._node.problem(PAGE, self._open_page(self._node.options.address))

    def check(self, now: float) -> None:
        for server in self._servers.values():
            server.check(now)

    def next_deadline(self) -> float | None:
        found = (server.next_deadline() for server in self._servers.values())
        return min((deadline for deadline in found if deadline is not None), default=None)

    def close(self) -> None:
        if SOCKET in self._servers:
            self._close_socket()
        if PAGE in self._servers:
            self._servers.pop(PAGE).close()

    def _open_page(self, address: str) -> str:
        host, port = options.split(address)
        try:
            listener = listen(host, port)
        except OSError as e:
            return f"GH-321: nothing is served at agent.address {address}: {e.strerror}; choose another, or none"
        self._node.page = f"{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        self._servers[PAGE] = WebServer(self._selector, listener, self._pages, self._healthy, token=self._token)
        return ""

    def _open_socket(self, path: str) -> str:
        why = ""
        try:
            may_ask = readers(self._node.options)
        except KeyError:
            group = self._node.options.group
            why = f"GH-321: only root can ask at {path}: there is no group {group}; make it, or change agent.group"
            may_ask = readers(self._node.options.replace(group="none", address="none"))
        try:
            listener = unix_socket.listen(path, 0o666)
            self._socket, self._inode = path, os.lstat(path).st_ino
        except OSError as e:
            return f"GH-321: no command can ask at {path}: {e.strerror}"
        self._servers[SOCKET] = WebServer(self._selector, listener, self._pages, self._healthy, may_ask=may_ask)
        self._lacks_group = bool(why)
        return why

    def _group_came(self) -> bool:
        if not self._lacks_group:
            return False
        with contextlib.suppress(KeyError):
            return bool(grp.getgrnam(self._node.options.group))
        return False

    def _is_there(self) -> bool:
        try:
            return os.lstat(self._socket).st_ino == self._inode
        except OSError:
            return False

    def _close_socket(self) -> None:
        self._servers.pop(SOCKET).close()
        with contextlib.suppress(OSError):
            if self._is_there():
                unix_socket.remove(self._socket)


def readers(given: options.AgentOptions) -> Callable[[socket.socket], bool]:
    """The test of who may ask: root, our own user, and the group that the settings name. Without one everybody may
    who could read the page as well: there is one, and it needs no token. Raises KeyError: there is no such group."""
    group = grp.getgrnam(given.group).gr_gid if given.group != "none" else -1
    everybody = group < 0 and given.token_file == "none" and given.address != "none"

    def may_ask(connection: socket.socket) -> bool:
        try:
            return (
                everybody
                or unix_socket.peer_uid(connection) in (0, os.geteuid())
                or group in unix_socket.peer_groups(connection)
            )
        except OSError:
            return False

    return may_ask
