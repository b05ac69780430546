"""settings.yaml: what is valid, what is refused and in which line, what is written."""

import os
import stat
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from oci_hook import __version__
from oci_hook.config import settings, settings_compile
from oci_hook.config.settings import Settings
from oci_hook.core.allocate import Allocation, Refusal, allocate
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.inventory import Gpu, Inventory
from oci_hook.core.request import GpuRequest, Request
from oci_hook.core.rules import Rules
from oci_hook.errors import CODES, SettingsError


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """An install prefix whose settings name a runtime that exists everywhere."""
    (tmp_path / "etc").mkdir()
    program(tmp_path / "runc")
    say(tmp_path, settings_compile.default_settings_yaml(runtime=str(tmp_path / "runc"), python=sys.executable))
    return tmp_path


def program(path: Path, mode: int = 0o755) -> Path:
    path.write_text("#!/bin/sh\nexit 1\n")
    path.chmod(mode)
    return path


def say(prefix: Path, text: str) -> None:
    (prefix / "etc/settings.yaml").write_text(text)


def base(prefix: Path, more: str = "") -> str:
    return f"runtime: {prefix}/runc\npython: {sys.executable}\n{more}"


def problems(prefix: Path, text: str) -> list[str]:
    """The lines that are said about `text`, without the file's name."""
    say(prefix, text)
    with pytest.raises(SettingsError) as e:
        settings_compile.compile(str(prefix))
    return [str(p).replace(f"{prefix}/etc/settings.yaml", "FILE") for p in e.value.problems]


def test_the_default_file_says_the_defaults(prefix: Path) -> None:
    said = settings_compile.check(str(prefix))
    assert said == Settings(str(prefix), runtime=f"{prefix}/runc", python=sys.executable)
    text = settings_compile.default_settings_yaml()
    data = yaml.safe_load(text)
    assert set(data) == {*settings_compile.SETTINGS, *settings_compile.SECTIONS}
    assert set(data["rules"]) == set(settings_compile.RULES) == set(Rules.FIELDS)
    assert data["runtime"] == Settings("x").runtime and data["state_dir"] == Settings("x").state_dir


def test_paths_in_the_default_file_are_quoted_where_needed(prefix: Path) -> None:
    odd = "/srv/it's: #1"
    said = yaml.safe_load(settings_compile.default_settings_yaml(state_dir=odd, driver_root="/run/nvidia/driver"))
    assert (said["state_dir"], said["driver_root"]) == (odd, "/run/nvidia/driver")


def test_what_is_compiled_is_what_the_hot_path_loads(prefix: Path) -> None:
    rules = (
        "rules: {default_policy: fixed-share, placement: spread, whole_gpus: shared, memory_reserve: 512Mi,"
        " memory_step: 256, memory_min: 1Gi, compute_step: 5, max_shares_per_gpu: 16,"
        " memory_per_share: 2Gi, trust_env: true, dialects: [qgpu], qgpu_memory_unit: GiB}\n"
    )
    say(prefix, base(prefix, f"mode: below\ndriver_root: /run/nvidia/driver\nstate_dir: /run/x\n{rules}"))
    said = settings_compile.compile(str(prefix))
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


def test_the_launcher_gets_three_lines(prefix: Path) -> None:
    settings_compile.compile(str(prefix))
    assert (prefix / "etc/launcher.conf").read_text() == (
        f"# gpu-hook {__version__}, written by `gpu-hook settings compile`; change settings.yaml instead\n"
        f"runtime={prefix}/runc\npython={sys.executable}\nmode=standalone\n"
    )


def test_files_are_0644_whatever_the_umask_and_nothing_else_is_left(prefix: Path) -> None:
    old = os.umask(0o077)
    try:
        settings_compile.compile(str(prefix))
    finally:
        os.umask(old)
    assert sorted(p.name for p in (prefix / "etc").iterdir()) == ["launcher.conf", "settings.json", "settings.yaml"]
    for name in ("launcher.conf", "settings.json"):
        assert stat.S_IMODE((prefix / "etc" / name).stat().st_mode) == 0o644


@pytest.mark.parametrize(
    ("said", "nanoseconds"),
    [("adaptive", 0), ("100ms", 100_000_000), ("1us", 1000), ("300us", 300_000), ("2s", 2 * 10**9), ("4s", 4 * 10**9)],
)
def test_linger_is_adaptive_or_a_time(prefix: Path, said: str, nanoseconds: int) -> None:
    say(prefix, base(prefix, f"rules:\n  linger: {said}\n"))
    settings_compile.compile(str(prefix))
    assert settings.load(str(prefix)).rules.linger == nanoseconds


@pytest.mark.parametrize(
    "said", ["0", "100", "0ms", "4001ms", "5s", "1.5ms", "-1ms", "1 ms", "1m", "never", "[1ms]", "yes"]
)
def test_a_linger_that_is_no_time(prefix: Path, said: str) -> None:
    [line] = problems(prefix, base(prefix, f"rules:\n  linger: {said}\n"))
    assert line.startswith("GH-501: FILE:4: rules.linger") and ("1us to 4s" in line or "single value" in line), line


def test_a_change_of_the_yaml_is_seen(prefix: Path) -> None:
    settings_compile.compile(str(prefix))
    assert not settings.load(str(prefix)).stale
    say(prefix, base(prefix))
    assert settings.load(str(prefix)).stale
    settings_compile.compile(str(prefix))
    assert not settings.load(str(prefix)).stale


def test_nothing_is_written_when_something_is_wrong(prefix: Path) -> None:
    settings_compile.compile(str(prefix))
    before = {p.name: p.read_bytes() for p in (prefix / "etc").iterdir() if p.name != "settings.yaml"}
    problems(prefix, base(prefix, "mode: sideways\n"))
    assert before == {p.name: p.read_bytes() for p in (prefix / "etc").iterdir() if p.name != "settings.yaml"}


def test_every_problem_at_once_with_its_line(prefix: Path) -> None:
    text = base(
        prefix,
        "mode: sideways\ncolour: red\nmode: below\nrules:\n  memory_step: -1\n  trust_env: 'yes'\n"
        "  dialects: [klingon]\n  placement: [[1]]\n  compute_step: 1.5\n"
        "  max_shares_per_gpu: 65\n  default_policy:\n",
    )
    assert problems(prefix, text) == [
        "GH-501: FILE:3: mode: 'sideways' is not one of standalone, on-top, below",
        "GH-501: FILE:4: 'colour' is not a setting; there are mode, runtime, python, driver_root, state_dir,"
        " profile, rules, agent",
        "GH-501: FILE:5: mode is set twice, first in line 3",
        "GH-501: FILE:7: rules.memory_step: '-1' is not a size from 1Mi to 16Ti; write 4Gi, 512Mi or a number of MiB",
        "GH-501: FILE:8: rules.trust_env: 'yes' is not true or false",
        "GH-501: FILE:9: rules.dialects is not a list of t9k, qgpu, gpu-manager, hami, nvidia-volumes",
        "GH-501: FILE:10: rules.placement is not a single value or a list of them",
        "GH-501: FILE:11: rules.compute_step: '1.5' is not a whole number from 1 to 100",
        "GH-501: FILE:12: rules.max_shares_per_gpu: '65' is not a whole number from 1 to 64",
        "GH-501: FILE:13: rules.default_policy: '' is not one of best-effort, fixed-share, burst-share",
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("state_dir: run/x", "is not an absolute path"),
        ("state_dir: //run/x", "is not an absolute path"),
        ("state_dir: /run/../etc", "is not in its shortest form; write /etc"),
        ("state_dir: /run/x/", "is not in its shortest form; write /run/x"),
        ("state_dir: /", "must be a directory of its own"),
        ('state_dir: "/run/x\\nruntime=/bin/sh"', "has characters that a path in settings may not have"),
        ("state_dir: 7", "is not an absolute path"),
        ("state_dir: [/run/x]", "is not an absolute path"),
        ("state_dir: !!python/name:os.system x", "has a type that settings do not have"),
        ("state_dir: !!bool x", "has a type that settings do not have"),
        ("state_dir: !!int x", "has a type that settings do not have"),
        ("state_dir: !!timestamp x", "has a type that settings do not have"),
    ],
)
def test_a_path_is_one_plain_absolute_path(prefix: Path, line: str, why: str) -> None:
    [said] = problems(prefix, base(prefix, line + "\n"))
    assert said.startswith("GH-501: FILE:3: state_dir") and why in said


@pytest.mark.parametrize("text", ["- a\n", "words\n", "rules: 7\n"])
def test_settings_are_keys_and_values(prefix: Path, text: str) -> None:
    assert "must be lines of key: value" in problems(prefix, text)[0]


@pytest.mark.parametrize(
    "text", ["a: [\n", "a: b: c\n", "\tmode: x\n", "a: \0\n", "---\na: 1\n---\nb: 2\n", "[" * 1000]
)
def test_not_yaml(prefix: Path, text: str) -> None:
    [line] = problems(prefix, text)
    assert line.startswith("GH-501: FILE") and ": not YAML: " in line


def test_an_alias_cannot_grow(prefix: Path) -> None:
    bomb = "a: &a [x, x]\n" + "".join(f"{c}: &{c} [*{p}, *{p}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True))
    assert all("is not a setting" in line for line in problems(prefix, bomb) if "GH-501: FILE:" in line)


def test_an_empty_file_means_the_defaults(prefix: Path) -> None:
    assert settings_compile.Checker("x").section(None, settings_compile.SETTINGS) == {}


def test_no_file(prefix: Path) -> None:
    (prefix / "etc/settings.yaml").unlink()
    with pytest.raises(SettingsError, match=r"GH-501: .*No such file.*gpu-hook install --prefix"):
        settings_compile.check(str(prefix))


def test_not_text_and_too_long(prefix: Path) -> None:
    (prefix / "etc/settings.yaml").write_bytes(b"\xff")
    with pytest.raises(SettingsError, match="GH-501"):
        settings_compile.check(str(prefix))
    say(prefix, "#" * (settings_compile.MAX_SIZE + 1))
    with pytest.raises(SettingsError, match="more than 65536 bytes"):
        settings_compile.check(str(prefix))


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
    assert line == f"GH-501: FILE:2: python: {python} is not Python 3.10 or newer"


def test_python_that_is_not_there_is_said_once(prefix: Path) -> None:
    [line] = problems(prefix, base(prefix).replace(sys.executable, "/no/python"))
    assert line.startswith("GH-501: FILE:2: python: /no/python: No such file")


def test_driver_root_may_be_missing_but_not_a_file(prefix: Path) -> None:
    say(prefix, base(prefix, "driver_root: /no/driver\n"))
    assert settings_compile.check(str(prefix)).driver_root == "/no/driver"
    [line] = problems(prefix, base(prefix, "driver_root: /etc/passwd\n"))
    assert line == "GH-501: FILE:3: driver_root: /etc/passwd is not a directory"


def test_a_prefix_that_cannot_be_written(prefix: Path) -> None:
    (prefix / "etc/launcher.conf").mkdir()
    with pytest.raises(SettingsError, match="GH-504: .*launcher.conf cannot be written"):
        settings_compile.compile(str(prefix))
    assert sorted(p.name for p in (prefix / "etc").iterdir()) == ["launcher.conf", "settings.yaml"]


@hypothesis_settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=60) | st.text(alphabet="modeurlsyn:[]{}&*!-'\"#|> \n1", max_size=60))
def test_any_text_is_settings_or_coded_problems(text: str) -> None:
    try:
        settings_compile.checked("/nowhere", text)
    except SettingsError as e:
        assert e.problems and all(p.code in CODES for p in e.problems)


# Profiles and dialects


def test_the_profile_qgpu_has_its_own_rules(prefix: Path) -> None:
    say(prefix, base(prefix, "profile: qgpu\nrules: {placement: spread, memory_min: 1, memory_step: 1Gi}\n"))
    rules = settings_compile.compile(str(prefix)).rules
    assert rules == Rules(placement="spread", memory_min=1024, memory_step=1024, compute_step=5, memory_per_share=4096)
    assert settings.load(str(prefix)).rules == rules


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
    rules = settings_compile.compile(str(prefix)).rules
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
    assert problems(prefix, base(prefix, "profile: qgpu\nrules:\n  compute_step: 10\n  memory_min: 2Gi\n")) == [
        "GH-501: FILE:6: rules.memory_min is 1024 in profile qgpu; remove the line, or the profile",
        "GH-501: FILE:5: rules.compute_step is 5 in profile qgpu; remove the line, or the profile",
    ]
    assert problems(prefix, base(prefix, "profile: vgpu\n")) == [
        "GH-501: FILE:3: profile: 'vgpu' is not one of none, qgpu"
    ]


@pytest.mark.parametrize("unit", ["", ", qgpu_memory_unit: none"])
def test_qgpu_needs_its_unit(prefix: Path, unit: str) -> None:
    assert problems(prefix, base(prefix, f"rules: {{dialects: [t9k, qgpu]{unit}}}\n")) == [
        "GH-501: FILE:3: rules.dialects: qgpu needs rules.qgpu_memory_unit: MiB or GiB,"
        " as your manifests mean qgpu-memory"
    ]


def test_a_wrong_unit_is_one_problem(prefix: Path) -> None:
    assert problems(prefix, base(prefix, "rules: {dialects: [qgpu], qgpu_memory_unit: MB}\n")) == [
        "GH-501: FILE:3: rules.qgpu_memory_unit: 'MB' is not one of none, MiB, GiB"
    ]
