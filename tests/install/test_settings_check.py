"""settings.yaml as commands check it: what is valid, what is refused and in which line, what a change writes."""

import os
import signal
import stat
import sys
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from oci_hook.config import flat_yaml, keys, settings
from oci_hook.config.settings import Settings
from oci_hook.core.allocate import Allocation, Refusal, allocate
from oci_hook.core.dialects import qgpu
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.inventory import Gpu, Inventory
from oci_hook.core.request import GpuRequest, Request
from oci_hook.core.rules import Rules
from oci_hook.errors import CODES, SettingsError
from oci_hook.install import agent_settings, answer, settings_check, settings_edit, state_owner
from oci_hook.install.settings_template import default_settings_yaml
from testbed.long import draws


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """An install prefix whose settings name a runtime that exists everywhere."""
    (tmp_path / "etc").mkdir()
    program(tmp_path / "runc")
    say(tmp_path, default_settings_yaml(runtime=str(tmp_path / "runc"), python=sys.executable))
    return tmp_path


def program(path: Path, mode: int = 0o755) -> Path:
    path.write_text("#!/bin/sh\nexit 1\n")
    path.chmod(mode)
    return path


def say(prefix: Path, text: str) -> None:
    (prefix / "etc/settings.yaml").write_text(text)


def base(prefix: Path, more: str = "") -> str:
    return f"runtime: {prefix}/runc\npython: '{sys.executable}'\n{more}"


def problems(prefix: Path, text: str) -> list[str]:
    """The lines that are said about `text`, without the file's name."""
    say(prefix, text)
    with pytest.raises(SettingsError) as e:
        settings_edit.change(str(prefix))
    return [str(p).replace(f"{prefix}/etc/settings.yaml", "FILE") for p in e.value.problems]


def test_the_default_file_says_the_defaults(prefix: Path) -> None:
    said = settings_check.check(str(prefix))
    assert said == Settings(str(prefix), runtime=f"{prefix}/runc", python=sys.executable)
    text = default_settings_yaml()
    data = yaml.safe_load(text)
    assert set(data) == set(keys.READERS) == {*keys.INSTALL, keys.PROFILE, *keys.RULES, *keys.AGENT}
    assert {*keys.RULES, keys.PROFILE} == set(Rules.FIELDS)
    assert tuple(f"agent.{name}" for name in agent_settings.AGENT) == keys.AGENT and ("none", *qgpu.UNITS) == keys.UNITS
    assert data["runtime"] == Settings("x").runtime and data["state_dir"] == Settings("x").state_dir


def test_paths_in_the_default_file_are_quoted_where_needed(prefix: Path) -> None:
    odd = "/srv/it's: #1"
    said = yaml.safe_load(default_settings_yaml(state_dir=odd, driver_root="/run/nvidia/driver"))
    assert (said["state_dir"], said["driver_root"]) == (odd, "/run/nvidia/driver")


def test_what_is_checked_is_what_the_hot_path_loads(prefix: Path) -> None:
    rules = (
        "default_policy: fixed-share\nplacement: spread\nwhole_gpus: shared\nmemory_reserve: 512Mi\n"
        "memory_step: 256\nmemory_min: 1Gi\ncompute_step: 5\nmax_shares_per_gpu: 16\n"
        "memory_per_share: 2Gi\ntrust_env: true\ndialects: [qgpu]\nqgpu_memory_unit: GiB\n"
    )
    say(prefix, base(prefix, f"mode: below\ndriver_root: /run/nvidia/driver\nstate_dir: /run/x\n{rules}"))
    said = settings_edit.change(str(prefix))
    assert said == settings.load(str(prefix))
    assert said == Settings(
        str(prefix),
        "below",
        f"{prefix}/runc",
        sys.executable,
        "/run/nvidia/driver",
        "/run/x",
        Rules("fixed-share", "spread", "shared", 512, 256, 1024, 5, 16, 2048, True, ("qgpu",), "GiB"),
    )


def test_files_are_0644_whatever_the_umask_and_nothing_else_is_left(prefix: Path) -> None:
    old = os.umask(0o077)
    try:
        settings_edit.change(str(prefix), placement="spread")
    finally:
        os.umask(old)
    assert sorted(p.name for p in (prefix / "etc").iterdir()) == ["settings.yaml", "state_dir"]
    for file in (prefix / "etc").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_oversubscribe_is_a_short_decimal_number(prefix: Path) -> None:
    for said, percent in (("1", 100), ("1.5", 150), ("2.05", 205), ("10", 1000), ("10.00", 1000)):
        say(prefix, base(prefix, f"oversubscribe: {said}\n"))
        assert settings_edit.change(str(prefix)).rules.oversubscribe == percent
    for said in ("000001000.00", "0000010", "01.5", "1.", "1.005", "0.99", "10.01", "9" * 5000, "1e1"):
        [line] = problems(prefix, base(prefix, f"oversubscribe: {said}\n"))
        assert line.startswith("GH-501: FILE:3: oversubscribe: ") and "is not from 1.0 to 10.0" in line


@pytest.mark.parametrize(
    ("said", "nanoseconds"),
    [("adaptive", 0), ("100ms", 100_000_000), ("1us", 1000), ("300us", 300_000), ("2s", 2 * 10**9), ("4s", 4 * 10**9)],
)
def test_linger_is_adaptive_or_a_time(prefix: Path, said: str, nanoseconds: int) -> None:
    say(prefix, base(prefix, f"linger: {said}\n"))
    settings_edit.change(str(prefix))
    assert settings.load(str(prefix)).rules.linger == nanoseconds


@pytest.mark.parametrize(
    "said", ["0", "100", "0ms", "4001ms", "5s", "1.5ms", "1m", "never", "[1ms]", "yes", "'1 ms'", "'-1ms'"]
)
def test_a_linger_that_is_no_time(prefix: Path, said: str) -> None:
    [line] = problems(prefix, base(prefix, f"linger: {said}\n"))
    assert line.startswith("GH-501: FILE:3: linger") and "1us to 4s" in line, line


def test_a_change_is_in_effect_at_once(prefix: Path) -> None:
    settings_edit.change(str(prefix))
    assert settings.load(str(prefix)).rules.placement == "by-class"
    say(prefix, base(prefix, "placement: spread\n"))
    assert settings.load(str(prefix)).rules.placement == "spread"


def test_nothing_is_written_when_something_is_wrong(prefix: Path) -> None:
    settings_edit.change(str(prefix))
    before = (prefix / "etc/state_dir").read_bytes()
    text = base(prefix, "mode: sideways\n")
    problems(prefix, text)
    with pytest.raises(SettingsError, match="sideways"):
        settings_edit.change(str(prefix), placement="spread")
    assert (prefix / "etc/settings.yaml").read_text() == text and (prefix / "etc/state_dir").read_bytes() == before


def test_every_problem_at_once_with_its_line(prefix: Path) -> None:
    text = base(
        prefix,
        "mode: sideways\ncolour: red\nmode: below\nmemory_step: -1\ntrust_env: 'yes'\n"
        "dialects: [klingon]\nplacement: [a]\ncompute_step: 1.5\n"
        "max_shares_per_gpu: 65\ndefault_policy: \nrules.linger: 1ms\nagent.policy: no\n",
    )
    assert problems(prefix, text) == [
        "GH-501: FILE:3: mode: 'sideways' is not one of standalone, on-top, below",
        "GH-501: FILE:4: 'colour' is not a setting; `gpu-hook settings show` lists them",
        "GH-501: FILE:5: mode is set twice, first in line 3",
        "GH-501: FILE:6: memory_step: '-1' has characters that need quotes; write memory_step: \"value\"",
        "GH-501: FILE:7: trust_env: 'yes' is not true or false",
        "GH-501: FILE:8: dialects is not a list of t9k, qgpu, gpu-manager, hami, kai, nvidia-volumes, nvidia",
        "GH-501: FILE:9: placement is not one of binpack, spread, by-class",
        "GH-501: FILE:10: compute_step: '1.5' is not a whole number from 1 to 100",
        "GH-501: FILE:11: max_shares_per_gpu: '65' is not a whole number from 1 to 64",
        "GH-501: FILE:12: default_policy has no value; write key: value in one line, or remove the line",
        "GH-501: FILE:13: 'rules.linger' is not a setting; write linger",
        "GH-501: FILE:14: agent.policy: 'no' is not one of protect, report, freeze, kill",
    ]


@pytest.mark.parametrize(
    ("key", "meant"),
    [("placment", "placement"), ("placementt", "placement"), ("mdoe", "mode"), ("token_file", "agent.token_file")],
)
def test_a_misspelt_setting_is_recognized(prefix: Path, key: str, meant: str) -> None:
    assert problems(prefix, base(prefix, f"{key}: x\n")) == [
        f"GH-501: FILE:3: {key!r} is not a setting; did you mean {meant}?"
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("state_dir: run/x", "is not an absolute path"),
        ("state_dir: //run/x", "is not an absolute path"),
        ("state_dir: /run/../etc", "is not in its shortest form; write /etc"),
        ("state_dir: /run/x/", "is not in its shortest form; write /run/x"),
        ("state_dir: /", "must be a directory of its own"),
        ('state_dir: "/run/x\\nruntime=/bin/sh"', "may have no backslash"),
        ('state_dir: "/run/\u200b"', "has characters that a path in settings may not have"),
        (f"state_dir: /{'x' * 1023}", "or is too long"),
        ("state_dir: 7", "is not an absolute path"),
        ("state_dir: [/run/x]", "write a list of plain words"),
        ("state_dir: [run]", "is not an absolute path"),
        ("state_dir: !!python/name:os.system x", "has characters that need quotes"),
        ("state_dir: !!bool x", "has characters that need quotes"),
        ("state_dir: !!int x", "has characters that need quotes"),
        ("state_dir: !!timestamp x", "has characters that need quotes"),
    ],
)
def test_a_path_is_one_plain_absolute_path(prefix: Path, line: str, why: str) -> None:
    [said] = problems(prefix, base(prefix, line + "\n"))
    assert said.startswith("GH-501: FILE:3: state_dir") and why in said


@pytest.mark.parametrize(
    "text",
    ["- a\n", "words\n", "a: [\n", "a: b: c\n", "\tmode: x\n", "a: \0\n", "---\na: 1\n", "a: &a [x]\n", "[" * 1000],
)
def test_what_is_not_lines_of_key_and_value(prefix: Path, text: str) -> None:
    assert all(line.startswith("GH-501: FILE:") and len(line) < 300 for line in problems(prefix, text))


def test_an_empty_file_means_the_defaults(prefix: Path) -> None:
    reading = settings.parse(str(prefix), b"")
    assert settings.interpret(str(prefix), reading) == Settings(str(prefix)) and not reading.problems


def test_no_file(prefix: Path) -> None:
    (prefix / "etc/settings.yaml").unlink()
    with pytest.raises(SettingsError, match=r"GH-501: no gpu-hook install in .*gpu-hook install --prefix"):
        settings_check.check(str(prefix))


def test_not_text_and_too_long(prefix: Path) -> None:
    (prefix / "etc/settings.yaml").write_bytes(b"\xff")
    with pytest.raises(SettingsError, match="GH-501"):
        settings_check.check(str(prefix))
    say(prefix, "#" * (flat_yaml.MAX_SIZE + 1))
    with pytest.raises(SettingsError, match="more than 65536 bytes"):
        settings_check.check(str(prefix))


# The programs that run as root


def test_the_runtime_must_be_there(prefix: Path) -> None:
    (prefix / "runc").unlink()
    [line] = problems(prefix, base(prefix))
    assert line == (
        f"GH-503: FILE:1: runtime: {prefix}/runc: No such file or directory; set it to the program's absolute path"
    )


def test_the_runtime_must_not_be_gpu_hook_itself(prefix: Path) -> None:
    (prefix / "bin").mkdir()
    launcher = program(prefix / "bin/gpu-hook-runtime")
    for name in ("link", "hard"):
        path = prefix / name
        path.symlink_to(launcher) if name == "link" else path.hardlink_to(launcher)
        [line] = problems(prefix, base(prefix).replace(f"{prefix}/runc", str(path)))
        assert line.startswith("GH-503: FILE:1: ") and "is gpu-hook itself" in line
    elsewhere = program(prefix / "gpu-hook-runtime")  # of another install: each would call the other for ever
    [line] = problems(prefix, base(prefix).replace(f"{prefix}/runc", str(elsewhere)))
    assert "is gpu-hook itself" in line


@pytest.mark.parametrize("name", ["runsc", "kata-runtime", "krun"])
def test_a_runtime_with_a_kernel_of_its_own(prefix: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("#!/bin/sh\n")
    (tmp_path / name).chmod(0o755)
    [line] = problems(prefix, f"runtime: {tmp_path / name}\n")
    assert line.startswith("GH-503: ") and "a kernel of their own" in line


@pytest.mark.parametrize(
    ("mode", "why"), [(0o644, "is not an executable file"), (0o775, "can be changed by others than root")]
)
def test_the_runtime_must_be_a_program_that_only_root_can_change(prefix: Path, mode: int, why: str) -> None:
    program(prefix / "runc", mode)
    [line] = problems(prefix, base(prefix))
    assert line.startswith("GH-503: FILE:1: runtime: ") and why in line


@pytest.mark.parametrize("body", ["exit 0", "echo False", "kill -9 $$"])
def test_python_must_be_new_enough(prefix: Path, body: str) -> None:
    python = program(prefix / "python")
    python.write_text(f"#!/bin/sh\n{body}\n")
    [line] = problems(prefix, base(prefix).replace(sys.executable, str(python)))
    assert (
        line
        == f"GH-501: FILE:2: python: {python} is not Python 3.10 or newer; name one that is, such as /usr/bin/python3.11"
    )


def test_a_python_that_hangs_ends_with_what_it_started(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "SECONDS", 1.0)
    python = program(prefix / "python")
    python.write_text(f"#!/bin/sh\nsleep 1000 &\necho $! >{prefix}/child\nwait\n")
    [line] = problems(prefix, base(prefix).replace(sys.executable, str(python)))
    assert "does not answer within 1 s" in line
    child = Path("/proc", (prefix / "child").read_text().strip(), "status")
    for _ in range(500):  # a process that is killed takes a moment to go
        if not child.exists() or "\nState:\tZ" in child.read_text():
            return
        time.sleep(0.01)
    os.kill(int(child.parent.name), signal.SIGKILL)
    pytest.fail("what it started lives on")


@pytest.mark.parametrize("body", ["yes", "trap '' XFSZ; while echo True; do :; done"])
def test_a_python_that_prints_without_end(prefix: Path, body: str) -> None:
    """It fills neither memory nor disk."""
    python = program(prefix / "python")
    python.write_text(f"#!/bin/sh\n{body}\n")
    [line] = problems(prefix, base(prefix).replace(sys.executable, str(python)))
    assert "is not Python 3.10 or newer" in line


def test_python_that_is_not_there_is_said_once(prefix: Path) -> None:
    [line] = problems(prefix, base(prefix).replace(sys.executable, "/no/python"))
    assert line.startswith("GH-501: FILE:2: python: /no/python: No such file")


def test_driver_root_may_be_missing_but_not_a_file(prefix: Path) -> None:
    say(prefix, base(prefix, "driver_root: /no/driver\n"))
    assert settings_check.check(str(prefix)).driver_root == "/no/driver"
    [line] = problems(prefix, base(prefix, "driver_root: /etc/passwd\n"))
    assert line == "GH-501: FILE:3: driver_root: /etc/passwd is not a directory"


def test_a_prefix_that_cannot_be_written(prefix: Path) -> None:
    (prefix / "etc/state_dir").mkdir()
    with pytest.raises(SettingsError, match="GH-504: .*state_dir cannot be written"):
        settings_edit.change(str(prefix))
    assert sorted(p.name for p in (prefix / "etc").iterdir()) == ["settings.yaml", "state_dir"]


@hypothesis_settings(max_examples=draws(150), deadline=None)
@given(text=st.text(max_size=60) | st.text(alphabet="modeurlsyn:[]{}&*!-'\"#|> \n1", max_size=60))
def test_any_text_is_settings_or_coded_problems(text: str) -> None:
    try:
        settings_check.checked("/nowhere", text.encode("utf-8", "surrogatepass"))
    except SettingsError as e:
        assert e.problems and all(p.code in CODES for p in e.problems)


# Profiles and dialects


def test_the_profile_qgpu_has_its_own_rules(prefix: Path) -> None:
    say(prefix, base(prefix, "profile: qgpu\nplacement: spread\nmemory_min: 1\nmemory_step: 1Gi\n"))
    rules = settings_edit.change(str(prefix)).rules
    steps = {"memory_min": 1024, "memory_step": 1024, "compute_step": 5, "memory_per_share": 4096}
    assert rules == Rules("best-effort", "spread", profile="qgpu", **steps)
    assert settings.load(str(prefix)).rules == rules
    settings_edit.change(str(prefix), default_policy="fs")
    assert settings.load(str(prefix)).rules.default_policy == "fixed-share"
    settings_edit.change(str(prefix), default_policy="auto", profile="none")
    assert settings.load(str(prefix)).rules.default_policy == "burst-share"


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ((1, 1), (1024, 5)),  # at least 1 GiB, and 5 %
        ((1025, 6), (2048, 10)),
        ((3072, 95), (3072, 95)),
        ((8191, 96), (8192, 100)),
    ],
)
def test_shares_under_the_profile_qgpu(prefix: Path, asked: tuple[int, int], given: tuple[int, int]) -> None:
    """In its steps, rounded up; what is booked is what the container may use; a place for each 4 GiB."""
    say(prefix, base(prefix, "profile: qgpu\n"))
    rules = settings_edit.change(str(prefix)).rules
    gpu = Gpu("GPU-0", 0, 0, 17 * 1024)
    node = Inventory("b", "1", "/", False, (gpu,), (), (), "", "")

    def place(memory: int, compute: int, *grants: Grant) -> Allocation | Refusal:
        return allocate(Request((GpuRequest(memory=("mib", memory), compute=compute),)), node, grants, rules)

    found = place(*asked)
    assert isinstance(found, Allocation)
    (share,) = found.shares
    assert (share.memory_mib, share.compute) == given
    held = tuple(
        Grant(f"k{n}", Identity("/r", f"c{n}", "/b"), Life("b"), (Share("GPU-0", 1024, 5, slot=n),)) for n in (1, 2, 3)
    )
    assert isinstance(place(1024, 5, *held), Allocation)
    four = (*held, held[0].replace(key="k4", shares=(Share("GPU-0", 1024, 5, slot=4),)))
    assert isinstance(refused := place(1024, 5, *four), Refusal) and "4 may share it" in str(refused.problems[0])


def test_a_profiles_rules_cannot_be_set_otherwise(prefix: Path) -> None:
    assert problems(prefix, base(prefix, "profile: qgpu\ncompute_step: 10\nmemory_min: 2Gi\n")) == [
        "GH-501: FILE:5: memory_min is 1024 in profile qgpu; remove the line, or the profile",
        "GH-501: FILE:4: compute_step is 5 in profile qgpu; remove the line, or the profile",
    ]
    assert problems(prefix, base(prefix, "profile: vgpu\n")) == [
        "GH-501: FILE:3: profile: 'vgpu' is not one of none, qgpu"
    ]


@pytest.mark.parametrize("unit", ["", "qgpu_memory_unit: none\n"])
def test_qgpu_needs_its_unit(prefix: Path, unit: str) -> None:
    assert problems(prefix, base(prefix, f"dialects: [t9k, qgpu]\n{unit}")) == [
        "GH-501: FILE:3: dialects: qgpu needs qgpu_memory_unit: MiB or GiB, as your manifests mean qgpu-memory"
    ]


def test_a_wrong_unit_is_one_problem(prefix: Path) -> None:
    assert problems(prefix, base(prefix, "dialects: [qgpu]\nqgpu_memory_unit: MB\n")) == [
        "GH-501: FILE:4: qgpu_memory_unit: 'MB' is not one of none, MiB, GiB"
    ]


# Changes of one line


def test_a_change_keeps_comments_and_other_lines(prefix: Path) -> None:
    text = base(prefix, "# a comment\nplacement:   by-class   # why\n  # the end")
    say(prefix, text)
    assert settings_edit.change(str(prefix), placement="spread", linger="100ms").rules.placement == "spread"
    assert (prefix / "etc/settings.yaml").read_text() == (
        text.replace("placement:   by-class", "placement: spread") + "\nlinger: 100ms\n"
    )


def test_a_change_quotes_what_needs_it_and_reads_it_back(prefix: Path) -> None:
    odd = str(prefix / "it's: #1")
    assert settings_edit.set_driver_root(str(prefix), odd).driver_root == odd
    assert f'driver_root: "{odd}"\n' in (prefix / "etc/settings.yaml").read_text()
    assert settings.load(str(prefix)).driver_root == odd
    settings_edit.change(str(prefix), dialects=("t9k", "hami"))
    assert settings.load(str(prefix)).rules.dialects == ("t9k", "hami")


@pytest.mark.parametrize("value", ["/a\nmode: below", '/it\'s "so"', "/\x7f"])
def test_a_change_that_no_line_can_hold(prefix: Path, value: str) -> None:
    before = (prefix / "etc/settings.yaml").read_bytes()
    with pytest.raises(SettingsError, match="GH-501: driver_root: .* settings.yaml cannot hold"):
        settings_edit.set_driver_root(str(prefix), value)
    assert (prefix / "etc/settings.yaml").read_bytes() == before


def test_the_last_line_without_its_end_is_a_line(prefix: Path) -> None:
    say(prefix, base(prefix, "placement: spread"))
    settings_edit.change(str(prefix), linger="1ms")
    assert (prefix / "etc/settings.yaml").read_text() == base(prefix, "placement: spread\nlinger: 1ms\n")


def test_a_wrong_state_dir_is_one_problem(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is said of the usual one, which nobody named, and which may be another install's."""
    monkeypatch.setattr(state_owner, "other", lambda prefix, state_dir: "/opt/other")
    assert problems(prefix, base(prefix, "state_dir: rel\n")) == [
        "GH-501: FILE:3: state_dir: 'rel' is not an absolute path"
    ]
