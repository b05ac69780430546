"""The agent's settings: the `agent.` lines of settings.yaml; flags of the command win over them."""

import os

from oci_hook.core.value import Value
from oci_hook.errors import refuse
from oci_hook.install import agent_settings
from oci_hook.observe.browser import is_loopback

TOKEN_MIN = 16


class AgentOptions(Value):
    """address: HOST:PORT or "none". token_file, textfile: a path or "none". group: a name or "none".
    policy: protect | report | freeze | kill. tolerance: MiB. compute_tolerance: points of a GPU's time. interval: seconds."""

    address: str = "127.0.0.1:9409"
    token_file: str = "none"
    textfile: str = "none"
    group: str = "none"
    policy: str = "protect"
    tolerance: int = 256
    compute_tolerance: int = 15
    interval: float = 5


def load(prefix: str) -> AgentOptions:
    """Raises SettingsError GH-501."""
    return AgentOptions(
        **{name: said for name, said in agent_settings.load(prefix).items() if name in AgentOptions.FIELDS}
    )


def split(address: str) -> tuple[str, int]:
    """(host, port) of an address that install/agent_settings.py has checked."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def token(options: AgentOptions) -> str:
    """The token that requests must have; "": none. Raises SettingsError GH-501 if other users could read or set it, and
    if the address is not of this machine alone and there is none."""
    if options.token_file == "none":
        if options.address != "none" and not is_loopback(split(options.address)[0]):
            raise refuse(
                "GH-501",
                f"agent.address {options.address} is not loopback and agent.token_file is none: anybody could read it;"
                " use 127.0.0.1, or write a token to a file and name that",
            )
        return ""
    path = options.token_file
    try:
        with open(path, "rb") as f:
            st = os.fstat(f.fileno())
            line = f.readline(4096).decode("ascii").strip()
    except (OSError, ValueError) as e:
        raise refuse("GH-501", f"agent.token_file {path}: {e}; write one line of letters and digits to it") from None
    if st.st_uid not in (0, os.geteuid()) or st.st_mode & 0o077:
        raise refuse("GH-501", f"agent.token_file {path} can be read or changed by others; chmod 0600, chown root")
    if len(line) < TOKEN_MIN or not line.isprintable() or " " in line:
        raise refuse("GH-501", f"agent.token_file {path}: its first line is no token of {TOKEN_MIN} or more characters")
    return line
