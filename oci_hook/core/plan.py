"""Grant -> Plan: the ordered changes that make a container of it. Each step describes itself; nothing is done here."""

from oci_hook.core.value import Value

DATA = ("ro", "nosuid", "nodev", "noexec")
LIBRARY = ("ro", "nosuid", "nodev")


class Bind(Value):
    """A bind mount. source: host path. destination: path in the container. options: mount flags beside "bind"."""

    __slots__ = ("source", "destination", "options")

    def __init__(self, source: str, destination: str, options: tuple[str, ...] = LIBRARY) -> None:
        self.source = source
        self.destination = destination
        self.options = options

    def describe(self) -> str:
        return f"bind {self.source} -> {self.destination} ({','.join(self.options)})"


class Tmpfs(Value):
    """A tmpfs of the container's own. size in bytes; mode octal; inodes bounds the number of files."""

    __slots__ = ("destination", "size", "inodes", "mode")

    def __init__(self, destination: str, size: int, inodes: int, mode: int) -> None:
        self.destination = destination
        self.size = size
        self.inodes = inodes
        self.mode = mode

    def describe(self) -> str:
        return f"tmpfs {self.destination} (size {self.size}, {self.inodes} inodes, mode {self.mode:04o})"


class DeviceNode(Value):
    """A character device node to exist in the container, mode 0666, owner root."""

    __slots__ = ("path", "major", "minor")

    def __init__(self, path: str, major: int, minor: int) -> None:
        self.path = path
        self.major = major
        self.minor = minor

    def describe(self) -> str:
        return f"node {self.path} (c {self.major}:{self.minor})"


class DeviceRule(Value):
    """A device cgroup rule: this character device may be opened. access: subset of "rwm"."""

    __slots__ = ("major", "minor", "access")

    def __init__(self, major: int, minor: int, access: str = "rw") -> None:
        self.major = major
        self.minor = minor
        self.access = access

    def describe(self) -> str:
        return f"allow c {self.major}:{self.minor} {self.access}"


class EnvVar(Value):
    """A variable of the container's process; value None removes it."""

    __slots__ = ("name", "value")

    def __init__(self, name: str, value: str | None) -> None:
        self.name = name
        self.value = value

    def describe(self) -> str:
        return f"env {self.name}={self.value}" if self.value is not None else f"env -{self.name}"


Step = Bind | Tmpfs | DeviceNode | DeviceRule | EnvVar
