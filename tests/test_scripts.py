"""Programs of scripts/ as somebody new calls them: with --help, and with words that they do not know."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import _cluster_real as cluster
from testbed import REPO
from testbed.cluster import build, programs


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """They, beside a setup that only leaves a trace, and in a checkout without a virtual environment."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    for path in (REPO / "scripts").iterdir():
        if path.is_dir():
            (folder / path.name).symlink_to(path)
        else:
            (folder / path.name).write_bytes(path.read_bytes())
            (folder / path.name).chmod(path.stat().st_mode)
    for name in ("benchmarks", "testbed"):
        (tmp_path / name).symlink_to(REPO / name)
    (folder / "setup").write_text(f"#!/bin/sh\ntouch {tmp_path}/called\nexit 9\n")
    return folder


def called(program: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *words], env={**os.environ, **more}, capture_output=True, text=True)


@pytest.mark.parametrize("name", ["bench", "cluster", "demo", "machine", "newcomer", "package", "test"])
def test_help_only_helps(scripts: Path, name: str) -> None:
    for word in ("-h", "--help"):
        done = called(scripts / name, word)
        assert done.returncode == 0 and not done.stderr, done.stderr
        assert len(done.stdout.splitlines()) > 2
    assert not (scripts.parent / "called").exists()


def test_the_help_of_package_names_every_kind(scripts: Path) -> None:
    kinds = (REPO / "packaging/build.py").read_text().partition("\nKINDS = {\n")[2].partition("\n}")[0]
    named = re.findall(r"[a-z-]+", called(scripts / "package", "--help").stdout.partition("\nKIND: ")[2])
    assert set(re.findall(r'^ +"(.+?)":', kinds, re.M)) <= set(named)


def test_the_demo_takes_no_arguments(scripts: Path) -> None:
    assert called(scripts / "demo", "--help").stdout.endswith("\nusage: scripts/demo\n")
    done = called(scripts / "demo", "--gpus")
    assert (done.returncode, done.stderr) == (2, "demo: unknown argument --gpus: it takes none\n")
    assert not (scripts.parent / "called").exists()


def test_what_writes_without_arguments_refuses_any(scripts: Path) -> None:
    page = REPO / "docs/reference/cli.md"
    before = page.stat().st_mtime_ns
    for name in ("cli_page.py", "lowest.py"):
        command = [REPO / ".venv/bin/python", REPO / "scripts" / name, "--help"]
        done = subprocess.run(command, cwd=scripts, capture_output=True, text=True)
        assert done.returncode == 1 and done.stderr.count("\n") < 4, done.stderr
    assert page.stat().st_mtime_ns == before and not (scripts / "--help").exists()


def test_setup_refuses_a_python_that_is_not_there() -> None:
    done = called(REPO / "scripts/setup", GPU_HOOK_PYTHON="/nonexist")
    assert (done.returncode, done.stderr) == (1, "setup: GPU_HOOK_PYTHON=/nonexist: no such program\n")


def test_setup_refuses_what_follows_a_word_that_it_knows() -> None:
    done = called(REPO / "scripts/setup", "--tests", "--engine")
    assert (done.returncode, done.stderr) == (2, "setup: unknown argument --tests --engine\n")


def test_setup_asks_dnf_for_fedora_s_names_and_leaves_out_what_it_has_not(tmp_path: Path) -> None:
    for name in ("bash", "dirname", "head", "ldd", "readlink", "sleep", "timeout", "tr"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    dnf = f'[ "$1" != -q ] || {{ [ "$3" != prometheus ]; exit; }}; echo "$@" >"{tmp_path}/asked"; exit 3'
    python = f'exec "{sys.executable}" "$@"'
    for name, lines in (("dnf", dnf), ("id", "echo 0"), ("uname", "echo x86_64"), ("python3", python)):
        (tmp_path / name).write_text(f"#!{shutil.which('sh')}\n{lines}\n")
        (tmp_path / name).chmod(0o755)
    command = [str(tmp_path / "bash"), str(REPO / "scripts/setup"), "--engines"]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    asked = set((tmp_path / "asked").read_text().split())
    assert {"util-linux", "moby-engine", "docker-cli", "rpm-build", "glibc-devel", "qemu-user-static-aarch64"} <= asked
    assert not asked & {"mount", "docker.io", "rpm", "libc6-dev", "docker-registry", "qemu-user-static", "prometheus"}
    assert "setup: dnf has no prometheus; it is left out\n" in done.stderr


def test_the_cluster_s_tests_run_on_the_newest_kubernetes_that_is_here(scripts: Path, tmp_path: Path) -> None:
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(REPO / ".venv/bin/python")
    cache = {"XDG_CACHE_HOME": str(tmp_path), "GPU_HOOK_KUBERNETES": ""}
    home = tmp_path / "gpu-hook-cluster"

    def on(*words: str) -> list[str]:
        said = called(scripts / "test", *words, **cache).stdout
        return [line for line in said.splitlines() if "Kubernetes" in line]

    assert on("--cluster") == ["test: on Kubernetes 1.20"]
    for name in (programs.key(), "1.9", "1.36.work", "1.9.work"):
        (home / name / "bin").mkdir(parents=True)
    assert on("--cluster=all") == ["test: on Kubernetes 1.20"]
    for name in ("1.36", "1.100"):
        (home / name / "bin").mkdir(parents=True)
    assert on("--cluster") == ["test: on Kubernetes 1.100"]
    assert on("--cluster=all,1.20") == ["test: on Kubernetes 1.20"]
    assert called(scripts / "test", "--cluster=newest", **cache).returncode == 2


def test_a_changed_list_of_packages_needs_no_kubernetes_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pins = tmp_path / "packages"
    pins.write_text("runc 1 aa\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(programs.CHOICE, "1.36")
    monkeypatch.setattr(programs, "PACKAGES_OF_TODAY", pins)
    kubelet = programs.given("1.36") / "kubelet"
    kubelet.parent.mkdir(parents=True)
    kubelet.touch()
    made: list[Path] = []

    def add(work: Path, home: Path) -> None:
        (home / "bin").mkdir(parents=True)
        made.append(home)

    monkeypatch.setattr(build, "_add", add)
    monkeypatch.setattr(build.platform, "machine", lambda: "x86_64")
    for text, number in (("runc 1 aa\n", 1), ("runc 2 bb\n", 2), ("runc 2 bb\n", 2)):
        pins.write_text(text)
        build.build(1, print)
        assert len(made) == number and made[-1] == programs.home() and programs.ready()
    assert kubelet.exists() and programs.versions() == ["1.36"]


@pytest.mark.parametrize("folder", ["/proc/x", "/proc", "/etc/hostname"])
def test_a_package_for_a_folder_that_cannot_be_written(folder: str) -> None:
    command = [REPO / ".venv/bin/python", "-B", REPO / "packaging/build.py", "deb", "--out", folder]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith(f"scripts/package: {folder}: ")
    assert done.stderr.count("\n") == 1


def test_a_package_for_a_folder_without_a_name() -> None:
    command = [REPO / ".venv/bin/python", "-B", REPO / "packaging/build.py", "deb", "--out", ""]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "argument --out: is empty; name a folder" in done.stderr


def test_denials_with_the_filter_are_apart_from_those_without_it() -> None:
    rows = [
        {"round": cluster.PLAIN, "denied": 0, "failed": 2},
        {"round": cluster.BIND, "denied": 4, "failed": 7},
        {"round": cluster.FILTER, "denied": 0, "failed": 0},
        {"round": "churn", "denied": 1},
    ]
    found = {name: (one["value"], one["ok"]) for name, one in cluster.denials(rows).items()}
    assert found["refused_at_bind"] == (1, False) and found["refused_at_bind_without_filter"] == (4, True)
    assert found["late_at_bind"] == (3, False) and cluster.denials(rows[:3])["refused_at_bind"]["ok"]
