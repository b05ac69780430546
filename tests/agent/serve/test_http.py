"""The server against clients that are slow, hostile or many; and who may read it."""

import base64
import resource
import selectors
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from oci_hook.agent.serve import http
from oci_hook.agent.serve.http import WebServer

BIG = b"x" * (8 << 20)


class Loop:
    """A server with its own loop in a thread. Its clock runs `speed` times as fast."""

    def __init__(self, token: str = "", speed: float = 1) -> None:
        self.selector = selectors.DefaultSelector()
        pages = {"/": lambda: ("text/plain", b"hello"), "/big": lambda: ("text/plain", BIG), "/bad": self.bad}
        self.healthy = True
        listener = http.listen("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        self.server = WebServer(self.selector, listener, pages, lambda: self.healthy, token=token)
        self.speed = speed
        self.stop = False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def bad(self) -> tuple[str, bytes]:
        raise RuntimeError("a mistake")

    def run(self) -> None:
        while not self.stop:
            now = time.monotonic() * self.speed
            for key, _ in self.selector.select(0.02):
                key.data(now)
            self.server.check(now)

    def close(self) -> None:
        self.stop = True
        self.thread.join()
        self.server.close()
        self.selector.close()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def ask(self, data: bytes) -> bytes:
        """The whole answer; b"" where the connection is closed without one."""
        with self.connect() as s:
            s.sendall(data)
            answer = b""
            try:
                while more := s.recv(1 << 16):
                    answer += more
            except ConnectionResetError:
                pass
            return answer

    def get(self, path: str = "/", *headers: str, host: str = "localhost:1") -> bytes:
        lines = [f"GET {path} HTTP/1.1", f"Host: {host}", *headers, "", ""]
        return self.ask("\r\n".join(lines).encode())


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture
def fast() -> Iterator[Loop]:
    loop = Loop(speed=100)
    yield loop
    loop.close()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


def test_pages(loop: Loop) -> None:
    answer = loop.get("/?x=1")
    assert status(answer) == 200 and answer.endswith(b"\r\n\r\nhello")
    assert b"Content-Security-Policy: default-src 'none'" in answer
    assert status(loop.get("/none")) == 404 and status(loop.get("/bad")) == 500
    assert loop.get("/big").endswith(BIG)
    assert loop.ask(b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n").endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 400),  # TLS
        (b"GET / HTTP/2\r\n\r\n", 400),
        (b"GET http://evil/ HTTP/1.1\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 4000, 431),
        (b"GET /" + b"a" * 20000, 431),
        (b"GET / HTTP/1.1\r\nHost: rebound.example\r\n\r\n", 403),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1.evil.example:80\r\n\r\n", 403),
        (b"GET / HTTP/1.1\r\n\r\n", 403),
        (b"GET / HTTP/1.1\r\nHost: \r\n\r\n", 403),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\nhost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: y\r\n Host: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: y\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: y\rHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\0.evil.example\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nGET /", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET / HTTP/1.9\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: [::1]:9\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1:9409\r\n\r\n", 200),
    ],
)
def test_garbage_is_answered_and_ended(loop: Loop, data: bytes, expected: int) -> None:
    assert status(loop.ask(data)) in (expected, 0 if expected == 431 else expected)  # it may be reset while it sends
    assert status(loop.get()) == 200


OURS = ("localhost", "LocalHost", "localhost:9409", "127.0.0.1", "127.255.0.9:80", "[::1]", "[::1]:9409", "[0:0::1]:1")
OTHERS = (
    "127.0.evil.com", "127.0.0.evil.com:80", "127.0.0.1.evil.com", "127.1", "0127.0.0.1", "2130706433", "127.0.0.1.",
    "::1", "[::1", "::1]", "[127.0.0.1]", "[localhost]", "[::1%lo]", "[::1]evil.com", "[::1]:", "[::ffff:127.0.0.1]",
    "localhost.evil.com", "evil.com:localhost", "localhost:", "localhost:80:80", "localhost:-1", "localhost:65536",
    "localhost:8o", "localhost:123456", "localhost @evil.com", "evil.com/localhost", "0.0.0.0", "128.0.0.1", "",
)  # fmt: skip


@pytest.mark.parametrize("host", OURS)
def test_this_machine_is_served(loop: Loop, host: str) -> None:
    assert status(loop.get(host=host)) == 200


@pytest.mark.parametrize("host", OTHERS)
def test_a_page_elsewhere_cannot_point_a_name_here(loop: Loop, host: str) -> None:
    assert status(loop.get(host=host)) == 403


def gone(loop: Loop) -> bool:
    """Whether the server holds no client any more."""
    end = time.monotonic() + 60
    while loop.server._clients and time.monotonic() < end:
        time.sleep(0.01)
    return not loop.server._clients


def test_clients_that_say_nothing_or_never_read(fast: Loop) -> None:
    silent, deaf = fast.connect(), fast.connect()
    deaf.sendall(b"GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert silent.recv(1) == b""  # closed by its deadline
    assert gone(fast)
    silent.close()
    deaf.close()


def test_clients_that_drip(fast: Loop) -> None:
    """A byte now and then, of a request or of an answer, keeps no place beyond the deadline, and keeps nobody out."""
    held = [fast.connect() for _ in range(4)]
    deaf = fast.connect()
    deaf.sendall(b"GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n")
    began = time.monotonic()
    open_, served = set(held), 0
    while open_:
        assert time.monotonic() - began < 60
        served += status(fast.get()) == 200
        for s in list(open_):
            try:
                s.send(b"G")
                s.setblocking(False)
                if s.recv(1) == b"":
                    open_.discard(s)
            except BlockingIOError:
                pass
            except OSError:
                open_.discard(s)
        try:
            deaf.recv(1)
        except OSError:
            pass
        time.sleep(0.005)
    assert served and gone(fast)
    for s in (*held, deaf):
        s.close()


def test_many_at_once_do_not_keep_others_out(loop: Loop) -> None:
    held = [loop.connect() for _ in range(3 * http.CLIENTS)]
    assert status(loop.get()) == 200
    assert len(loop.server._clients) <= http.CLIENTS and loop.server.refused
    for s in held:
        s.close()


def test_one_turn_of_the_loop_does_not_go_on_for_ever() -> None:
    with selectors.DefaultSelector() as selector:
        listener = http.listen("127.0.0.1", 0)
        server = WebServer(selector, listener, {}, lambda: True)
        server._listener.listen(100)
        clients = [socket.create_connection(listener.getsockname(), timeout=60) for _ in range(100)]
        accepted = []
        for _ in range(2):
            for key, _ in selector.select(60):
                if key.fileobj is server._listener:
                    key.data(0.0)
            accepted.append(server.refused + len(server._clients))
        assert accepted == [64, 100]
        server.close()
        for client in clients:
            client.close()


def test_a_token_is_asked_for_each_page() -> None:
    loop = Loop(token="secret-secret-secret")
    try:
        assert status(loop.get()) == status(loop.get("/none")) == 401
        assert status(loop.get("/", "Authorization: Bearer wrong")) == 401
        assert status(loop.get("/", "Authorization: Basic secret-secret-secret")) == 401
        browser = base64.b64encode(b"anybody:secret-secret-secret").decode()
        assert status(loop.get("/", f"Authorization: Basic {browser}")) == 200
        assert status(loop.get("/", "Authorization: Bearer secret-secret-secret", host="node7.example")) == 200
    finally:
        loop.close()


@pytest.mark.parametrize("token", ["", "secret-secret-secret"])
def test_health_is_for_every_probe(token: str) -> None:
    """A kubelet asks by the node's address and has no token. The answer says one bit; nothing else is open."""
    loop = Loop(token=token)
    try:
        for host in ("localhost", "10.0.0.7:9409", "evil.example", ""):
            answer = loop.get("/healthz?x", host=host)
            assert status(answer) == 200 and answer.endswith(b"\r\n\r\nok\n")
        loop.healthy = False
        answer = loop.get("/healthz", host="10.0.0.7")
        assert status(answer) == 503 and answer.endswith(b"\r\n\r\ndegraded\n")
        assert loop.ask(b"HEAD /healthz HTTP/1.1\r\n\r\n").endswith(b"\r\n\r\n")
        assert status(loop.ask(b"POST /healthz HTTP/1.1\r\n\r\n")) == 405
        for path in ("/healthz/", "//healthz", "/healthz/../", "/HEALTHZ", "/healthz%00"):
            assert status(loop.get(path, host="evil.example")) in (401, 403)
    finally:
        loop.close()


def test_a_client_that_no_descriptor_is_left_for_does_not_keep_the_loop_busy() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with selectors.DefaultSelector() as selector:
        listener = http.listen("127.0.0.1", 0)
        server = WebServer(selector, listener, {"/": lambda: ("text/plain", b"hello")}, lambda: True)
        with socket.create_connection(listener.getsockname(), timeout=5) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            resource.setrlimit(resource.RLIMIT_NOFILE, (1, limits[1]))
            try:
                ((key, _),) = selector.select(5)
                key.data(7.0)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert selector.select(0) == []
            assert server.next_deadline() == 7.0 + http.PAUSE
            server.check(7.5)
            assert selector.select(0) == []
            server.check(7.0 + http.PAUSE)
            for _ in ("connection", "request"):
                ((key, _),) = selector.select(5)
                key.data(9.0)
            assert client.recv(4096).startswith(b"HTTP/1.1 200")
        server.close()
