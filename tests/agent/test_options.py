"""The agent's settings and flags."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from oci_hook.agent import options
from oci_hook.agent.options import AgentOptions
from oci_hook.cli.main import cli
from oci_hook.config.settings import load
from oci_hook.errors import GhError
from tests.cli.box import Install


def test_another_address_needs_a_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    assert (
        options.token(AgentOptions())
        == options.token(AgentOptions("[::1]:9"))
        == options.token(AgentOptions("none"))
        == ""
    )
    for address in ("0.0.0.0:9409", "10.0.0.1:9409", "[::]:9409"):
        with pytest.raises(GhError, match="GH-501.*not loopback"):
            options.token(AgentOptions(address))
    with pytest.raises(GhError, match="No such file"):
        options.token(AgentOptions("0.0.0.0:1", str(file)))
    file.write_text("short\n")
    file.chmod(0o600)
    with pytest.raises(GhError, match="16 or more"):
        options.token(AgentOptions("0.0.0.0:1", str(file)))
    file.write_text("0123456789abcdef\n")
    assert options.token(AgentOptions("0.0.0.0:1", str(file))) == "0123456789abcdef"
    file.chmod(0o644)
    with pytest.raises(GhError, match="can be read or changed by others"):
        options.token(AgentOptions("0.0.0.0:1", str(file)))


def test_settings(tmp_path: Path) -> None:
    install = Install(tmp_path)
    assert options.load(str(tmp_path)) == AgentOptions()
    yaml = (tmp_path / "etc/settings.yaml").read_text()
    install.say(yaml.replace("policy: protect  ", "policy: freeze ").replace("interval: 5 ", "interval: 9 "))
    assert options.load(str(tmp_path)) == AgentOptions(policy="freeze", interval=9)
    assert load(str(tmp_path)).state_dir == str(install.state)
    install.say(
        yaml.replace("127.0.0.1:9409", "localhost:9409").replace("interval: 5 ", "interval: 0 ") + "agent.color: red\n"
    )
    said = install.text("settings", "check", status=1)
    assert "agent.address" in said and "agent.interval" in said and "'agent.color' is not a setting" in said


def test_flags_are_checked(tmp_path: Path) -> None:
    Install(tmp_path)
    for flags, said in (
        (["--address", "here"], "is not an address"),
        (["--tolerance", "x"], "is not a size"),
        (["--textfile", "/tmp/metrics.txt"], "its name ends in .prom"),
    ):
        r = CliRunner().invoke(cli, ["agent", "--prefix", str(tmp_path), *flags])
        assert r.exit_code == 2 and said in r.output
