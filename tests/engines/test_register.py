"""Registering with engines: what is written, that it is idempotent, and that unregistering restores every byte."""

import errno
import itertools
import json
import multiprocessing
import os
import re
import stat
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomlkit

from oci_hook.core import layout
from oci_hook.engines import containerd, crio, docker, edits, register
from oci_hook.engines.edits import Registration
from oci_hook.errors import SettingsError, refuse

DEBIAN = """\
version = 2

# the administrator's own comment
[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "/usr/lib/cni"
    [plugins."io.containerd.grpc.v1.cri".containerd]
      default_runtime_name = "runc" # as ever
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
        runtime_type = "io.containerd.runc.v2"
        privileged_without_host_devices = true
        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
          SystemdCgroup = true
          BinaryName = "/usr/sbin/runc"

[debug]
  level = "info"
"""
CRI = ("plugins", "io.containerd.grpc.v1.cri", "containerd")


class Host:
    """A machine's root directory with every engine's program, and an install's programs, none of which is run."""

    def __init__(self, root: Path) -> None:
        self.root = root / "host"
        self.prefix = root / "prefix"
        for name in ("usr/bin/dockerd", "usr/bin/containerd", "usr/bin/podman", "usr/bin/crio", "usr/sbin/runc"):
            self.file(name, "")
        (self.prefix / "bin").mkdir(parents=True)
        for name in ("gpu-hook-runtime", "oci-gpu-hook"):
            (self.prefix / "bin" / name).touch(0o755)
        self.program = f"{self.prefix}/bin/gpu-hook-runtime"

    def file(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def registration(self, **more: Any) -> Registration:
        return Registration(**{"prefix": str(self.prefix), "host_root": str(self.root), **more})

    def install(self, *names: str, dry_run: bool = False, **more: Any) -> list[register.Result]:
        return register.register(names, self.registration(**more), dry_run)

    def uninstall(self, *names: str, dry_run: bool = False, **more: Any) -> list[register.Result]:
        return register.unregister(names, self.registration(**more), dry_run)

    def tree(self) -> dict[str, object]:
        """Every file and folder of the machine: contents, mode, where a link leads."""
        found: dict[str, object] = {}
        for path in sorted(self.root.rglob("*")):
            name = str(path.relative_to(self.root))
            if path.is_symlink():
                found[name] = os.readlink(path)
            else:
                found[name] = (stat.S_IMODE(path.stat().st_mode), path.is_file() and path.read_bytes())
        return found


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(edits, "LOCK", str(tmp_path / "lock"))
    return Host(tmp_path)


def toml(path: Path) -> Any:
    return tomlkit.parse(path.read_text()).unwrap()


def at(data: Any, *keys: str) -> Any:
    for key in keys:
        data = data[key]
    return data


def test_a_containerd_that_serves_docker_alone(host: Host) -> None:
    """docker's packages switch the CRI plugin off; their file states no version, which containerd 2 cannot be registered in."""
    config = host.file("etc/containerd/config.toml", 'disabled_plugins = ["cri"]\n')
    (left,) = (result for result in host.install() if result.engine == "containerd")
    assert f"{config} disables its CRI plugin" in left.unused and not left.changes
    assert config.read_text() == 'disabled_plugins = ["cri"]\n'
    host.install("containerd")  # whoever names it has it registered
    assert host.program in config.read_text()
    (again,) = (result for result in host.install() if result.engine == "containerd")
    assert not again.unused and again.changes and not again.changed
    host.uninstall()
    assert config.read_text() == 'disabled_plugins = ["cri"]\n'


@pytest.mark.parametrize("listed", ("7", "[[]]", '"cri"', '["zfs"]', "[]"))
def test_other_lists_of_disabled_plugins(host: Host, listed: str) -> None:
    host.file("etc/containerd/config.toml", f"version = 2\ndisabled_plugins = {listed}\n")
    assert all(result.changed and not result.unused for result in host.install() if result.engine == "containerd")


ENGINE_FILES = {
    "docker": {"etc/docker/daemon.json": '{\n    "log-driver": "journald"\n}\n'},
    "containerd": {"etc/containerd/config.toml": DEBIAN},
    "podman": {"etc/containers/containers.conf": '[engine]\nevents_logger = "file"\n'},
    "crio": {"etc/crio/crio.conf": "[crio]\n"},
}


@pytest.mark.parametrize("default", (False, True))
@pytest.mark.parametrize("files", (True, False), ids=("configured", "bare"))
def test_a_second_install_changes_nothing_and_uninstall_leaves_no_trace(host: Host, files: bool, default: bool) -> None:
    if files:
        for each in ENGINE_FILES.values():
            for name, text in each.items():
                host.file(name, text).chmod(0o640)
    before = host.tree()
    first = host.install(default=default)
    assert [r.engine for r in first] == ["docker", "containerd", "podman", "crio", "runc"]
    assert [r.changed for r in first] == [True, True, True, True, False]
    installed = host.tree()
    assert {k: v for k, v in installed.items() if k in before and v != before[k]} or not files
    again = host.install(default=default)
    assert not any(r.changed or r.command for r in again)
    assert host.tree() == installed
    host.uninstall()
    assert host.tree() == before
    assert not (host.prefix / "etc/engines.json").exists() and not (host.prefix / "etc/before").exists()
    assert host.uninstall() == []


def test_dry_run_changes_nothing_and_shows_everything(host: Host) -> None:
    for name, text in ENGINE_FILES["containerd"].items():
        host.file(name, text)
    before = host.tree()
    (result,) = host.install("containerd", dry_run=True)
    assert host.tree() == before and not (host.prefix / "etc").exists()
    diff = result.changes[0].diff()
    assert f'+    BinaryName = "{host.program}"' in diff
    assert not [line for line in diff[2:] if line.startswith("-")]  # only additions
    host.install("containerd")
    installed = host.tree()
    (result,) = host.uninstall("containerd", dry_run=True)
    assert host.tree() == installed
    assert {line[0] for line in result.changes[0].diff()[2:]} == {"-", " ", "@"}


# docker


@pytest.mark.parametrize(
    "text",
    (
        "{}",
        "",
        "\n",
        "{\n}\n",
        '{"debug": true}',
        '{"runtimes": {}}',
        '{\n\t"debug": true,\n\t"runtimes": {\n\t\t"x": {"path": "/x"}\n\t}\n}',
        '{ "a" : [1, {"b": "}"}] , "runtimes" : {"x":{"path":"/x"}} }',
        '{\n  "default-runtime": "x",\n  "runtimes": {"x": {"path": "/x"}}\n}\n',
        '\ufeff{"debug": true}\n',
        '{"runtimes": null, "debug": true}',
        '{"runtimes": {"x": {"path": "/x"}}, "debug": true, "runtimes": {"y": {"path": "/y"}}}',
        '{"default-runtime": "y", "default-runtime": "x", "runtimes": {"x": {"path": "/x"}, "x": {"path": "/z"}}}',
    ),
)
@pytest.mark.parametrize("default", (False, True))
def test_docker_gets_a_runtime_and_keeps_the_rest(host: Host, text: str, default: bool) -> None:
    path = host.file("etc/docker/daemon.json", text)
    host.install("docker", default=default)
    data = docker.parse(path.read_text(), path)
    was = docker.parse(text, path) if text.strip() else {}
    assert data["runtimes"] == {**(was.get("runtimes") or {}), "gpu-hook": {"path": host.program}}
    assert data.get("default-runtime") == ("gpu-hook" if default else was.get("default-runtime"))
    kept = {"runtimes", "default-runtime"}
    assert {k: v for k, v in data.items() if k not in kept} == {k: v for k, v in was.items() if k not in kept}
    host.uninstall("docker")
    assert path.read_text() == text
    if text.strip() not in ("", "{}", "{\n}"):
        host.install("docker", default=default)
        path.write_text(path.read_text() + "\n")  # so that the backup does not count
        host.uninstall("docker")
        assert path.read_text() == text + "\n"


def test_docker_writes_as_the_file_is_written(host: Host) -> None:
    path = host.file("etc/docker/daemon.json", '{\n    "log-driver": "journald"\n}\n')
    host.install("docker")
    assert path.read_text() == (
        '{\n    "log-driver": "journald",\n    "runtimes": {\n        "gpu-hook": {\n'
        f'            "path": "{host.program}"\n        }}\n    }}\n}}\n'
    )


def test_docker_edited_by_the_administrator_in_between(host: Host) -> None:
    """Unregistering removes only our lines; the administrator's later changes stay."""
    path = host.file("etc/docker/daemon.json", '{\n  "debug": true,\n  "default-runtime": "x"\n}\n')
    host.install("docker", default=True)
    text = path.read_text().replace('"debug": true', '"debug": false').replace("\n}\n", ',\n  "mtu": 1400\n}\n')
    path.write_text(text)
    assert not host.install("docker")[0].changed
    host.uninstall("docker")
    assert path.read_text() == '{\n  "debug": false,\n  "default-runtime": "x",\n  "mtu": 1400\n}\n'


def test_docker_edited_beside_our_runtime(host: Host) -> None:
    path = host.file("etc/docker/daemon.json", "{}\n")
    host.install("docker")
    data = json.loads(path.read_text())
    data["runtimes"]["kata"] = {"path": "/kata"}
    path.write_text(json.dumps(data, indent=1))
    host.uninstall("docker")
    assert json.loads(path.read_text()) == {"runtimes": {"kata": {"path": "/kata"}}}


@pytest.mark.parametrize("flag", (["--default-runtime", "runc"], ["--default-runtime=runc"]))
def test_docker_default_runtime_by_a_flag(host: Host, monkeypatch: pytest.MonkeyPatch, flag: list[str]) -> None:
    """dockerd ends at its next start where flag and file both name one."""
    path = host.file("etc/docker/daemon.json", "{}")
    words = ["dockerd", "--config-file", str(path), *flag]
    monkeypatch.setattr(docker, "running", lambda name: iter([(7, words)]))
    with pytest.raises(SettingsError, match=r"GH-508: .*dockerd \(7\) has the flag --default-runtime runc"):
        host.install("docker", default=True)
    assert path.read_text() == "{}"
    host.install("docker")  # adds the runtime alone
    words[2] = "/elsewhere.json"
    host.install("docker", default=True)
    assert json.loads(path.read_text())["default-runtime"] == "gpu-hook"


def test_docker_default_runtime_of_the_administrator_stays(host: Host) -> None:
    path = host.file("etc/docker/daemon.json", '{"default-runtime": "x"}')
    host.install("docker", default=True)
    path.write_text(path.read_text().replace('"default-runtime": "gpu-hook"', '"default-runtime": "y"'))
    host.uninstall("docker")
    assert json.loads(path.read_text()) == {"default-runtime": "y"}


def acl(*entries: tuple[int, int, int]) -> bytes:
    """An ACL of these (tag, permissions, id) as the kernel stores it (uapi/linux/posix_acl_xattr.h)."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


@pytest.mark.root
@pytest.mark.parametrize(
    "name, engine", [("etc/docker/daemon.json", "docker"), ("etc/containers/containers.conf.d/x.conf", "podman")]
)
def test_acls_and_attributes_stay(host: Host, name: str, engine: str) -> None:
    """A user who may write by an ACL may write afterwards, the owning group may not, and neither by the folder's own ACL."""
    text = "{}\n" if engine == "docker" else "# of this site\n"
    path, anybody = host.file(name, text), 0xFFFFFFFF
    kept = {
        "system.posix_acl_access": acl(
            (1, 6, anybody), (2, 6, 1000), (4, 0, anybody), (16, 6, anybody), (32, 0, anybody)
        ),
        "user.note": b"of this site",
        "trusted.note": b"",
    }
    default = acl((1, 7, anybody), (2, 7, 1001), (4, 7, anybody), (16, 7, anybody), (32, 7, anybody))
    os.setxattr(path.parent, "system.posix_acl_default", default)
    for key, value in kept.items():
        os.setxattr(path, key, value)
    os.chown(path, 1002, 1003)
    mode = path.stat().st_mode

    def attributes() -> dict[str, bytes]:
        return {key: os.getxattr(path, key) for key in os.listxattr(path) if not key.startswith("security.")}

    for step in (host.install, host.uninstall):
        step(engine, config=str(path))
        st = path.stat()
        assert attributes() == kept and (st.st_mode, st.st_uid, st.st_gid) == (mode, 1002, 1003), step
    assert path.read_text() == text


@pytest.mark.root
def test_an_attribute_that_cannot_be_kept_changes_nothing(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    path = host.file("etc/docker/daemon.json", "{}\n")
    os.setxattr(path, "user.note", b"x")
    setxattr = os.setxattr

    def refused(*args: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "setxattr", refused)
    with pytest.raises(
        SettingsError, match=r"GH-507: .*its attribute user.note cannot be kept \(Operation not permitted\); it is unch"
    ):
        host.install("docker")
    monkeypatch.setattr(os, "setxattr", setxattr)
    assert path.read_text() == "{}\n" and os.listdir(path.parent) == ["daemon.json"]


# containerd


def handler(path: Path, *keys: str) -> Any:
    return at(toml(path), *(keys or CRI), "runtimes", "gpu-hook")


def test_containerd_handler(host: Host) -> None:
    path = host.file("etc/containerd/config.toml", DEBIAN)
    host.install("containerd", default=True)
    ours = handler(path)
    assert ours["runtime_type"] == "io.containerd.runc.v2"
    assert ours["options"] == {"BinaryName": host.program, "SystemdCgroup": True}
    assert ours["privileged_without_host_devices"] is True
    for key in ("pod_annotations", "container_annotations"):
        assert ours[key][0] == layout.PREFIX_KEY + "*"
        assert {"NVIDIA_VISIBLE_DEVICES", "T9K_GPU_PERCENT", "T9K_GPU_MEMORY", "tensorstack.dev/*"} <= set(ours[key])
    assert 'default_runtime_name = "gpu-hook" # as ever\n' in path.read_text()
    assert path.read_text().startswith(DEBIAN.split("default_runtime_name")[0])


@pytest.mark.parametrize(
    "head, plugin",
    (
        ("", ("plugins", "cri")),
        ("version = 1\n", ("plugins", "cri")),
        ("version = 2\n", ("plugins", "io.containerd.grpc.v1.cri")),
        ("version = 3\n", ("plugins", "io.containerd.cri.v1.runtime")),
        ("version = 4\n", ("plugins", "io.containerd.cri.v1.runtime")),
    ),
)
def test_containerd_tables_follow_the_version_of_the_root_file(host: Host, head: str, plugin: tuple[str, ...]) -> None:
    path = host.file("etc/containerd/config.toml", head + '[debug]\nlevel = "info"')
    host.install("containerd", default=True)
    assert handler(path, *plugin, "containerd")["options"]["BinaryName"] == host.program
    assert at(toml(path), *plugin, "containerd", "default_runtime_name") == "gpu-hook"
    host.uninstall("containerd")
    assert path.read_text() == head + '[debug]\nlevel = "info"'


def test_containerd_file_without_runtimes_gets_the_usual_one_too(host: Host) -> None:
    """containerd has runc only while the file names no runtime at all; Debian's own file is such a one."""
    text = DEBIAN[: DEBIAN.index("    [plugins", DEBIAN.index("bin_dir"))]
    path = host.file("etc/containerd/config.toml", text)
    host.install("containerd")
    assert at(toml(path), *CRI, "runtimes", "runc") == {"runtime_type": "io.containerd.runc.v2"}
    assert not host.install("containerd")[0].changed
    path.write_text("# edited\n" + path.read_text())
    assert not host.install("containerd")[0].changed
    host.uninstall("containerd")
    assert path.read_text() == "# edited\n" + text


def test_containerd_without_a_file_gets_one_that_every_release_reads(host: Host) -> None:
    host.install("containerd")
    data = toml(host.root / "etc/containerd/config.toml")
    assert data["version"] == 2 and set(data) == {"version", "plugins"}
    assert set(at(data, *CRI, "runtimes")) == {"runc", "gpu-hook"}


def test_containerd_2_does_not_read_the_plugins_of_version_1(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.file("etc/containerd/config.toml", '[debug]\nlevel = "info"\n')
    monkeypatch.setattr(containerd, "major", lambda registration: 2)
    with pytest.raises(SettingsError, match="GH-506: .*version 1.*config migrate"):
        host.install("containerd")


def test_containerd_1_changes_the_import_that_counts(host: Host) -> None:
    """In containerd 1.x a plugin's table in a later file replaces the whole table of an earlier file."""
    root = host.file("etc/containerd/config.toml", 'imports = ["/etc/containerd/conf.d/*.toml"]\n' + DEBIAN)
    drop_in = host.file("etc/containerd/conf.d/99-nvidia.toml", DEBIAN.replace("true", "false"))
    before = root.read_text()
    host.install("containerd")
    assert root.read_text() == before
    assert handler(drop_in)["options"]["SystemdCgroup"] is False


OTHER = f'version = 2\n[plugins."{CRI[1]}"]\n  sandbox_image = "registry.example/pause:3.10"\n'


def test_containerd_1_decides_anew_where_its_lines_count(host: Host) -> None:
    """As files of other tools come and go, a second install moves our lines, and leaves none behind."""
    root = host.file("etc/containerd/config.toml", 'imports = ["/etc/containerd/conf.d/*.toml"]\n' + DEBIAN)
    before = host.tree()
    host.install("containerd")
    later = host.file("etc/containerd/conf.d/99-other.toml", OTHER)
    host.install("containerd")
    assert handler(later)["options"]["BinaryName"] == host.program and "gpu-hook" not in root.read_text()
    later.unlink()
    host.install("containerd")
    assert handler(root)["options"] == {"BinaryName": host.program, "SystemdCgroup": True} and not later.exists()
    later.parent.rmdir()
    host.uninstall("containerd")
    assert host.tree() == before and not (host.prefix / "etc/engines.json").exists()


EKS = """version = {version}
[plugins."{plugin}".containerd]
  default_runtime_name = "nvidia"
[plugins."{plugin}".containerd.runtimes.nvidia]
  runtime_type = "io.containerd.runc.v2"
  base_runtime_spec = "/etc/containerd/base-runtime-spec.json"
  [plugins."{plugin}".containerd.runtimes.nvidia.options]
    binaryName = "/usr/bin/nvidia-container-runtime"
    SystemdCgroup = {systemd}
"""
RUNC = """[plugins."{plugin}".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."{plugin}".containerd.runtimes.runc.options]
    SystemdCgroup = {systemd}
"""


@pytest.mark.parametrize("version", (2, 3))
@pytest.mark.parametrize("default, other", (("true", None), ("true", "false"), ("false", "true"), ("false", "false")))
def test_containerd_handler_is_like_the_nodes_default(
    host: Host, version: int, default: str, other: str | None
) -> None:
    keys = containerd.PLUGIN[version]
    text = EKS.format(version=version, plugin=keys[1], systemd=default)
    text += RUNC.format(plugin=keys[1], systemd=other) if other else ""
    path = host.file("etc/containerd/config.toml", text)
    (result,) = host.install("containerd")
    ours = handler(path, *keys, "containerd")
    assert ours["base_runtime_spec"] == "/etc/containerd/base-runtime-spec.json"
    assert ours["options"] == {"BinaryName": host.program, "SystemdCgroup": "true" in (default, other)}
    assert any("SystemdCgroup of nvidia, the default, and of runc differ" in doubt for doubt in result.doubts) == (
        other not in (None, default)
    )
    assert not host.install("containerd")[0].changed
    host.uninstall("containerd")
    assert path.read_text() == text


NAMES_THE_DEFAULT = {
    "podman": ("etc/containers/containers.conf.d/nvidia.conf", '[engine]\nruntime = "nvidia"\n'),
    "crio": ("etc/crio/crio.conf.d/99-nvidia.conf", '[crio.runtime]\ndefault_runtime = "nvidia"\n'),
    "containerd": (
        "etc/containerd/conf.d/99-nvidia.toml",
        EKS.format(version=3, plugin=containerd.PLUGIN[3][1], systemd="true"),
    ),
}


@pytest.mark.parametrize("name", NAMES_THE_DEFAULT)
def test_a_default_is_not_overruled_by_a_later_file(host: Host, name: str) -> None:
    host.file("etc/containerd/config.toml", 'version = 3\nimports = ["conf.d/*.toml"]\n')
    before = host.tree()
    host.install(name, default=True)
    path, text = NAMES_THE_DEFAULT[name]
    other = host.file(path, text)
    module = register.engine(name)
    assert module.has(host.registration(), {}).default == "nvidia"
    (result,) = host.install(name)
    has = module.has(host.registration(), {})
    assert (has.default, has.program, result.doubts) == ("gpu-hook", host.program, [])
    assert len([p for p in other.parent.iterdir() if "gpu-hook" in p.name]) == 1 and other.read_text() == text
    assert not host.install(name)[0].changed
    host.uninstall(name)
    other.unlink()
    if other.parent not in [host.root / name for name in before]:
        other.parent.rmdir()
    assert {k: v for k, v in host.tree().items() if k in before} == before
    assert not [path for path in host.root.rglob("*gpu-hook*")]


def test_a_file_whose_runtime_is_another_is_said(host: Host) -> None:
    """The administrator's later word stays, and install says that it is the last."""
    later = host.file("etc/containers/containers.conf.d/zz.conf", '[engine.runtimes]\ngpu-hook = ["/usr/sbin/runc"]\n')
    (result,) = host.install("podman")
    assert result.doubts == [f"its runtime gpu-hook is /usr/sbin/runc by {later}"]


@pytest.mark.parametrize(
    "words", ("# File generated by k3s. DO NOT EDIT. Use config.toml.tmpl", "# Do not modify this file")
)
def test_a_generated_file_is_left_alone(host: Host, words: str) -> None:
    path = host.file("etc/containerd/config.toml", f"{words}\n{DEBIAN}")
    with pytest.raises(
        SettingsError, match=r"GH-506: .* is generated \((?i:do not) (?i:edit|modify)\).*--print --engine containerd"
    ):
        host.install("containerd")
    assert path.read_text() == f"{words}\n{DEBIAN}"


def test_containerd_imports_of_imports(host: Host) -> None:
    """containerd reads them by levels, each file once, and a relative name beside the file that names it."""
    root = host.file("etc/containerd/config.toml", 'imports = ["/etc/containerd/a/*.toml", "z.toml"]\nversion = 2\n')
    host.file("etc/containerd/a/1.toml", 'imports = ["../b/*.toml", "/etc/containerd/config.toml"]\nversion = 2\n')
    host.file("etc/containerd/z.toml", DEBIAN.replace("true", "false"))
    last = host.file("etc/containerd/b/1.toml", DEBIAN)
    before = host.tree()
    assert [file.path.resolve() for file in containerd.load(host.registration())][::3] == [root, last]
    host.install("containerd")
    assert handler(last)["options"] == {"BinaryName": host.program, "SystemdCgroup": True}
    host.uninstall("containerd")
    assert host.tree() == before


def test_containerd_1_import_that_counts_has_no_runtimes(host: Host) -> None:
    """The runtimes of the root file are replaced with its table, so the import needs runc beside our handler."""
    host.file("etc/containerd/config.toml", 'imports = ["/etc/containerd/conf.d/*.toml"]\n' + DEBIAN)
    text = 'version = 2\n[plugins."io.containerd.grpc.v1.cri".registry]\n  config_path = "/etc/containerd/certs.d"\n'
    registry = host.file("etc/containerd/conf.d/registry.toml", text)
    host.install("containerd", default=True)
    assert at(toml(registry), *CRI, "runtimes", "runc") == {"runtime_type": "io.containerd.runc.v2"}
    assert handler(registry)["options"] == {"BinaryName": host.program}
    assert not host.install("containerd")[0].changed
    host.uninstall("containerd")
    assert registry.read_text() == text


def test_containerd_2_gets_a_drop_in(host: Host) -> None:
    text = DEBIAN.replace("version = 2", 'version = 3\nimports = ["/etc/containerd/conf.d/*.toml"]')
    text = text.replace("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")
    root = host.file("etc/containerd/config.toml", text)
    before = host.tree()
    host.install("containerd")
    assert root.read_text() == text
    drop_in = host.root / "etc/containerd/conf.d/99-gpu-hook.toml"
    assert toml(drop_in)["version"] == 3
    options = handler(drop_in, "plugins", "io.containerd.cri.v1.runtime", "containerd")["options"]
    assert options == {"BinaryName": host.program, "SystemdCgroup": True}
    root.write_text(text.replace("imports", "# imports"))  # what was written is found all the same
    host.uninstall("containerd")
    root.write_text(text)
    assert host.tree() == before


def test_containerd_edited_by_the_administrator_in_between(host: Host) -> None:
    path = host.file("etc/containerd/config.toml", DEBIAN)
    host.install("containerd", default=True)
    more = '\n[plugins."io.containerd.grpc.v1.cri".registry]\n  config_path = "/etc/containerd/certs.d"\n'
    path.write_text(path.read_text().replace('level = "info"', 'level = "debug"') + more)
    assert not host.install("containerd")[0].changed
    host.uninstall("containerd")
    assert path.read_text() == DEBIAN.replace('level = "info"', 'level = "debug"') + more


def test_containerd_without_the_comments_of_our_block(host: Host) -> None:
    path = host.file("etc/containerd/config.toml", DEBIAN)
    host.install("containerd")
    path.write_text("".join(line for line in path.read_text().splitlines(True) if "# gpu-hook" not in line))
    host.uninstall("containerd")
    assert path.read_text().rstrip() == DEBIAN.rstrip()


def test_containerd_keys_that_would_change_their_table_are_left_to_the_administrator(host: Host) -> None:
    path = host.file("etc/containerd/config.toml", DEBIAN)
    host.install("containerd")
    text = path.read_text() + "NoPivotRoot = true\n"
    path.write_text(text)
    with pytest.raises(SettingsError, match="GH-506: .*by hand"):
        host.uninstall("containerd")
    assert path.read_text() == text


# podman and CRI-O


def test_podman_runtime_and_hooks(host: Host) -> None:
    host.install("podman")
    data = toml(host.root / "etc/containers/containers.conf.d/gpu-hook.conf")
    own = "/etc/containers/oci/podman-hooks.d"
    folders = ["/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d", own]  # podman's own, and the next
    assert data == {"engine": {"hooks_dir": folders, "runtimes": {"gpu-hook": [host.program]}}}
    for stage in ("createRuntime", "poststop", "precreate"):
        folder = host.root / ("etc/containers/oci/hooks.d" if stage != "precreate" else own[1:])
        assert len(list(folder.iterdir())) == (1 if stage == "precreate" else 2)  # others read the usual folders
        hook = json.loads((folder / f"gpu-hook-{stage}.json").read_text())
        assert hook["stages"] == [stage] and hook["hook"]["args"] == ["oci-gpu-hook", stage]
        assert hook["hook"]["path"] == f"{host.prefix}/bin/oci-gpu-hook" and hook["hook"]["env"]
        ((pattern, values),) = hook["when"]["annotations"].items()
        assert values == ".*"
        for key in ("gpu-hook.io/memory", "NVIDIA_VISIBLE_DEVICES", "tensorstack.dev/nvidia-gpu", "T9K_GPU_PERCENT"):
            assert re.search(pattern, key)
        for key in ("gpu-hookXio/memory", "NVIDIA_VISIBLE_DEVICES2"):  # near misses, which the hook refuses or tells of
            assert re.search(pattern, key)
        for key in ("org.gpu-hook.io/memory", "other"):
            assert not re.search(pattern, key)


def test_new_folders_can_be_read_whatever_the_umask(host: Host) -> None:
    """Rootless podman reads containers.conf.d as a plain user, and fails where it cannot."""
    umask = os.umask(0o077)
    try:
        host.install("podman")
    finally:
        os.umask(umask)
    folders = {path: stat.S_IMODE(path.stat().st_mode) for path in (host.root / "etc").rglob("*") if path.is_dir()}
    assert host.root / "etc/containers/containers.conf.d" in folders
    assert set(folders.values()) == {0o755}, folders


@pytest.mark.parametrize("umask", (0, 0o077))
def test_folders_of_the_record_whatever_the_umask(host: Host, umask: int) -> None:
    """The files of engines as they were before are for root alone."""
    host.file("etc/docker/daemon.json", "{}")
    before = os.umask(umask)
    try:
        host.install("docker")
    finally:
        os.umask(before)
    etc = host.prefix / "etc"
    modes = {
        str(path.relative_to(etc)): stat.S_IMODE(path.stat().st_mode)
        for path in (etc, *etc.rglob("*"))
        if path.is_dir()
    }
    assert modes == {".": 0o755, "before": 0o700, "before/docker": 0o700}


def test_podman_hooks_where_the_administrator_wants_them(host: Host) -> None:
    host.file("etc/containers/containers.conf", '[engine]\nhooks_dir = ["/etc/a", "/etc/b"]\n')
    host.install("podman")
    assert "hooks_dir" not in toml(host.root / "etc/containers/containers.conf.d/gpu-hook.conf")["engine"]
    assert (host.root / "etc/b/gpu-hook-poststop.json").exists() and not (host.root / "etc/a").exists()
    assert (host.root / "etc/b/gpu-hook-precreate.json").exists()


def test_podman_hooks_where_other_programs_read_them_too(host: Host) -> None:
    """`podman build` and CRI-O do not know precreate, and fail on a file that names it."""
    host.file("etc/containers/containers.conf", '[engine]\nhooks_dir = ["/etc/containers/oci/hooks.d"]\n')
    host.install("podman")
    found = {path.name for path in host.root.rglob("gpu-hook-*.json")}
    assert found == {"gpu-hook-createRuntime.json", "gpu-hook-poststop.json"}


@pytest.mark.parametrize("name", ("containers.conf", "containers.conf.d/50-site.conf"))
def test_podman_file_by_config(host: Host, name: str) -> None:
    """The hooks_dir of our lines is not the administrator's, whatever file they are in."""
    path = host.file(f"etc/containers/{name}", "# of this site\n")
    before = host.tree()
    host.install("podman", config=str(path))
    installed = host.tree()
    for _ in range(2):
        assert not any(result.changed for result in host.install("podman", config=str(path)))
        assert host.tree() == installed
    host.uninstall("podman", config=str(path))
    assert host.tree() == before


def test_podman_default(host: Host) -> None:
    host.install("podman", default=True)
    engine = toml(host.root / "etc/containers/containers.conf.d/gpu-hook.conf")["engine"]
    assert engine["runtime"] == "gpu-hook"
    assert not host.install("podman")[0].changed  # stays the default


def test_crio_handler_and_hooks_where_crio_reads_them(host: Host) -> None:
    host.file("etc/crio/crio.conf.d/10-x.conf", '[crio.runtime]\nhooks_dir = ["/etc/containers/oci/hooks.d"]\n')
    host.install("podman", "crio", default=True)
    runtime = toml(host.root / "etc/crio/crio.conf.d/99-gpu-hook.conf")["crio"]["runtime"]
    assert runtime["runtimes"] == {"gpu-hook": {"runtime_path": host.program, "runtime_type": "oci"}}
    assert runtime["default_runtime"] == "gpu-hook"
    hook = host.root / "etc/containers/oci/hooks.d/gpu-hook-createRuntime.json"
    assert not (host.root / "usr/share").exists()
    host.uninstall("podman")
    assert hook.exists()  # CRI-O has need of it
    host.uninstall("crio")
    assert not hook.exists()


def test_crio_folders_among_its_drop_ins(host: Host) -> None:
    host.file("etc/crio/crio.conf.d/10-site/x.conf", '[crio.runtime]\nhooks_dir = ["/etc/site"]\n')
    (host.root / "etc/crio/crio.conf.d/20-empty.conf").mkdir()
    host.install("crio")
    assert (host.root / "etc/site/gpu-hook-poststop.json").exists()


# As CRI-O's own packages have it: conmon is in no folder of CRI-O's PATH, and CRI-O does not start with a handler that finds none.
PACKAGED = """\
[crio.runtime]
default_runtime = "crun"
[crio.runtime.runtimes.crun]
runtime_path = "/usr/libexec/crio/crun"
runtime_root = "/run/crun"
monitor_path = "/usr/libexec/crio/conmon"
allowed_annotations = ["io.containers.trace-syscall"]
default_annotations = {"run.oci.systemd.subgroup" = ""}
platform_runtime_paths = {"os/arch" = "/usr/bin/crun"}
[crio.runtime.runtimes.runc]
runtime_path = "/usr/libexec/crio/runc"
monitor_path = "/usr/libexec/crio/conmon-of-runc"
"""
LIKE_CRUN = {
    "runtime_root": "/run/crun",
    "monitor_path": "/usr/libexec/crio/conmon",
    "allowed_annotations": ["io.containers.trace-syscall"],
    "default_annotations": {"run.oci.systemd.subgroup": ""},
}


def crio_handler(host: Host, **options: Any) -> dict[str, Any]:
    host.install("crio", **options)
    handler: dict[str, Any] = toml(host.root / "etc/crio/crio.conf.d/99-gpu-hook.conf")["crio"]["runtime"]["runtimes"][
        "gpu-hook"
    ]
    assert handler.pop("runtime_path") == host.program
    return handler


@pytest.mark.parametrize("default", (False, True))
def test_crio_handler_is_like_the_default_one(host: Host, default: bool) -> None:
    packaged = host.file("etc/crio/crio.conf.d/10-crio.conf", PACKAGED)
    before = host.tree()
    for _ in range(2):  # our own lines name a default runtime, too
        assert crio_handler(host, default=default) == {"runtime_type": "oci", **LIKE_CRUN}
    packaged.write_text(PACKAGED.replace('runtime = "crun"', 'runtime = "runc"', 1))
    assert crio_handler(host)["monitor_path"] == "/usr/libexec/crio/conmon-of-runc"
    packaged.write_text(PACKAGED)
    host.uninstall("crio")
    assert host.tree() == before


@pytest.mark.parametrize(
    "later, expected",
    (
        ('default_runtime = "runc"\n', {"monitor_path": "/usr/libexec/crio/conmon-of-runc"}),
        ('[crio.runtime.runtimes.crun]\nmonitor_path = "/x"\n', {"monitor_path": "/x"}),  # the whole entry is replaced
        ('[crio.runtime.runtimes.crun]\nruntime_type = "vm"\nprivileged_without_host_devices = true\n', {}),
        ('[crio.runtime.runtimes.crun]\nruntime_type = "pod"\n', {"runtime_type": "pod"}),
        ('default_runtime = "nowhere"\n', {}),
        ("default_runtime = 1\n", LIKE_CRUN),
        ("", LIKE_CRUN),
    ),
)
def test_crio_handler_by_the_last_word(host: Host, later: str, expected: dict[str, Any]) -> None:
    host.file("etc/crio/crio.conf.d/10-crio.conf", PACKAGED)
    host.file("etc/crio/crio.conf.d/50-site.conf", "[crio.runtime]\n" + later)
    assert crio_handler(host) == {"runtime_type": "oci", **expected}


def test_crio_hooks_where_they_can_be_written_and_last(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenShift's list ends with a folder of a read-only /usr, before which is one of a tmpfs."""
    listed = ["/etc/containers/oci/hooks.d", "/run/containers/oci/hooks.d", "/usr/share/containers/oci/hooks.d"]
    host.file("etc/crio/crio.conf.d/00-default", f"[crio.runtime]\nhooks_dir = {json.dumps(listed)}\n")
    (host.root / "usr/share").mkdir(parents=True)
    monkeypatch.setattr(crio, "read_only", lambda folder: folder.is_relative_to(host.root / "usr"))
    host.install("crio")
    assert [path.parent for path in host.root.rglob("gpu-hook-*.json")] == [host.root / listed[0][1:]] * 2


@pytest.mark.parametrize("names", ((), ("crio", "podman")))
def test_hooks_of_two_engines_go_with_both(host: Host, names: tuple[str, ...]) -> None:
    folders = '["/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d"]'
    host.file("etc/crio/crio.conf", f"[crio.runtime]\nhooks_dir = {folders}\n")
    before = host.tree()
    host.install("podman", "crio")
    host.uninstall(*names)
    assert host.tree() == before and not (host.prefix / "etc/engines.json").exists()


@pytest.mark.parametrize(
    "engine, file",
    (("podman", "containers/containers.conf.d/gpu-hook.conf"), ("crio", "crio/crio.conf.d/99-gpu-hook.conf")),
)
def test_a_drop_in_with_the_administrators_lines(host: Host, engine: str, file: str) -> None:
    """The administrator's lines before and after ours: a second install keeps them, and an uninstall leaves them."""
    host.install(engine)
    path = host.root / "etc" / file
    ours = path.read_text()
    path.write_text("# of this site\n" + ours + "[other]\n  key = 1\n")
    edited = path.read_text()
    assert not any(result.changed for result in host.install(engine))
    assert path.read_text() == edited
    host.install(engine, default=True)
    assert toml(path)["other"] == {"key": 1} and path.read_text().count("gpu-hook: begin") == 1
    host.uninstall(engine)
    assert path.read_text() == "# of this site\n[other]\n  key = 1\n"
    path.write_text("[engine.runtimes]\n[crio.runtime.runtimes.gpu-hook]\n  gpu-hook = 1\n")
    with pytest.raises(SettingsError, match="GH-508: .*contradict"):
        host.install(engine)


# Errors


@pytest.mark.parametrize(
    "name, engine, text, where",
    (
        ("etc/docker/daemon.json", "docker", '{\n  "debug": true,\n}\n', ":3:1: not JSON"),
        ("etc/docker/daemon.json", "docker", "[]", ":1:1: not a JSON object"),
        ("etc/docker/daemon.json", "docker", '{"runtimes": []}', "not a JSON object"),
        ("etc/docker/daemon.json", "docker", "[" * 100_000, "nested"),
        ("etc/docker/daemon.json", "docker", "\x00", ":1:1: not JSON"),
        ("etc/containerd/config.toml", "containerd", "version = 2\n[plugins\n", ":2:"),
        ("etc/containerd/config.toml", "containerd", "version = 5\n", "version = 5 is not one of 1 to 4"),
        ("etc/containerd/config.toml", "containerd", 'version = "2"\n', "version = '2' is not"),
        ("etc/containerd/config.toml", "containerd", "version = 2\nplugins = {}\n", "cannot be added to safely"),
        ("etc/containerd/config.toml", "containerd", "imports = 3\n", "imports is not a list"),
        ("etc/crio/crio.conf", "crio", "[crio\n", ":1:"),
    ),
)
def test_a_broken_file_is_refused_with_its_place_and_nothing_changes(
    host: Host, name: str, engine: str, text: str, where: str
) -> None:
    host.file(name, text)
    before = host.tree()
    with pytest.raises(SettingsError) as refused:
        host.install("podman", engine)
    assert str(refused.value).startswith("GH-506: ") and where in str(refused.value)
    assert name.rpartition("/")[2] in str(refused.value)
    assert host.tree() == before


def test_not_utf8(host: Host) -> None:
    host.file("etc/docker/daemon.json", "").write_bytes(b'{\n"a": "\xff"}')
    with pytest.raises(SettingsError, match=r"GH-506: .*daemon.json:2: byte 0xff"):
        host.install("docker")


def test_an_engine_that_is_not_there(host: Host) -> None:
    (host.root / "usr/bin/dockerd").unlink()
    with pytest.raises(SettingsError, match="GH-505: docker is not on this machine"):
        host.install("docker")
    host.file("snap/bin/docker", "")
    with pytest.raises(SettingsError, match="GH-505: docker is here from snap only"):
        host.install("docker")
    assert "docker" not in [r.engine for r in host.install()]


def test_the_name_taken_by_somebody_else(host: Host, tmp_path: Path) -> None:
    host.file("etc/docker/daemon.json", '{"runtimes": {"gpu-hook": {"path": "/elsewhere/bin/gpu-hook-runtime"}}}')
    host.file("etc/containerd/config.toml", DEBIAN)
    host.install("containerd", "podman")
    other = Host(tmp_path / "other")
    other.root = host.root
    before = host.tree()
    for engine in ("docker", "containerd", "podman"):
        with pytest.raises(SettingsError, match="GH-508: "):
            other.install(engine)
        assert other.uninstall(engine) == []  # not ours to take away
    assert host.tree() == before


@pytest.mark.parametrize("engine", ("podman", "crio"))
def test_a_prefix_whose_path_ends_in_ours(host: Host, tmp_path: Path, engine: str) -> None:
    """The registration of /srv/opt/gpu-hook is not that of /opt/gpu-hook."""
    host.install(engine)
    before = host.tree()
    within = replace(host.registration(), prefix="/" + str(host.prefix).rpartition("/")[2])
    assert register.unregister([engine], within) == [] and host.tree() == before


def test_a_link_is_followed_and_stays(host: Host) -> None:
    real = host.file("etc/real/docker.json", "{}")
    link = host.root / "etc/docker/daemon.json"
    link.parent.mkdir()
    link.symlink_to("../real/docker.json")
    before = host.tree()
    host.install("docker")
    assert link.is_symlink() and "gpu-hook" in real.read_text()
    host.uninstall("docker")
    assert host.tree() == before
    real.unlink()
    with pytest.raises(SettingsError, match="GH-507: .*is a link to .*does not exist"):
        host.install("docker")


@pytest.mark.parametrize("linked", ["file", "folder"])
@pytest.mark.parametrize(
    ("engine", "name", "text"),
    [
        ("docker", "etc/docker/daemon.json", "{}"),
        ("containerd", "etc/containerd/config.toml", "version = 2\n"),
        ("containerd", "etc/containerd/conf.d/a.toml", f"version = 2\n[plugins.'{CRI[1]}'.containerd]\n"),
        ("podman", "etc/containers/containers.conf.d/gpu-hook.conf", "# mine\n"),
        ("crio", "etc/crio/crio.conf.d/99-gpu-hook.conf", "# mine\n"),
    ],
)
def test_links_lead_below_the_host_root(
    host: Host, tmp_path: Path, engine: str, name: str, text: str, linked: str
) -> None:
    """An absolute link of the machine's leads to the machine's file, and not to one of the same name where we run."""
    if name.endswith("a.toml"):
        host.file("etc/containerd/config.toml", 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n')
    there = tmp_path / "ours/kept/there"  # where we run, and below host_root the machine's
    for root in (Path("/"), host.root):
        at = root / str(there).lstrip("/")
        at.mkdir(parents=True)
        (at / Path(name).name).write_text(text)
    path = host.root / name
    link = path if linked == "file" else path.parent
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(there / path.name if linked == "file" else there)
    before = host.tree()
    host.install(engine)
    assert (there / path.name).read_text() == text
    assert [*there.iterdir()] == [there / path.name]
    machines = host.root / str(there).lstrip("/") / path.name
    assert "gpu-hook" in machines.read_text() and link.is_symlink()
    host.uninstall(engine)
    assert host.tree() == before


def test_links_of_the_host_root_that_lead_round(host: Host) -> None:
    (host.root / "etc/docker").mkdir(parents=True)
    (host.root / "etc/docker/daemon.json").symlink_to("/etc/docker/daemon.json")
    with pytest.raises(SettingsError, match="GH-507: .*daemon.json: .*; correct its links"):
        host.install("docker")


def test_a_file_that_is_no_file(host: Host) -> None:
    (host.root / "etc/docker/daemon.json").mkdir(parents=True)
    with pytest.raises(SettingsError, match="GH-507: .*not a regular file"):
        host.install("docker")


def test_no_engine_is_registered_if_another_ones_file_cannot_be_written(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, how: "etc/containerd" not in str(path) and access(path, how))
    (host.root / "etc/containerd").mkdir(parents=True)
    before = host.tree()
    with pytest.raises(SettingsError, match="GH-507: .*etc/containerd cannot be written to"):
        register.register(["docker", "containerd"], host.registration())
    assert host.tree() == before


def test_a_failure_says_which_engines_were_changed_before(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_file = edits.replace_file

    def full(path: Path, data: bytes) -> None:
        if "containerd" in str(path):
            raise refuse("GH-507", f"{path}: No space left on device; it is unchanged")
        replace_file(path, data)

    monkeypatch.setattr(edits, "replace_file", full)
    said = r"No space left .*; before that, docker was registered \(systemctl reload docker\)$"
    with pytest.raises(SettingsError, match=said):
        register.register(["docker", "containerd"], host.registration())
    assert "gpu-hook" in (host.root / "etc/docker/daemon.json").read_text()


def test_owner_and_mode_stay(host: Host) -> None:
    path = host.file("etc/docker/daemon.json", "{}")
    path.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(path, 12, 34)
    host.install("docker")
    st = path.stat()
    assert stat.S_IMODE(st.st_mode) == 0o600
    assert os.geteuid() or (st.st_uid, st.st_gid) == (12, 34)


@pytest.mark.parametrize("part", ("bin/gpu-hook-runtime", "bin", ""))
def test_a_prefix_that_others_can_change_is_refused(host: Host, part: str) -> None:
    (host.prefix / part).chmod(0o775)
    with pytest.raises(SettingsError, match="GH-504: .*can be changed by others"):
        host.install("docker")


def test_a_lost_or_changed_backup_is_said(host: Host) -> None:
    path = host.file("etc/docker/daemon.json", "{}")
    host.install("docker")
    installed = path.read_text()
    (backup,) = (host.prefix / "etc/before/docker").iterdir()
    backup.write_text("{ }")
    with pytest.raises(SettingsError, match="GH-506: .*, the backup of daemon.json, was changed"):
        host.uninstall("docker")
    backup.unlink()
    with pytest.raises(SettingsError, match="GH-507: .*, the backup of daemon.json: No such"):
        host.uninstall("docker")
    assert path.read_text() == installed


def test_without_the_record_what_is_ours_is_still_known(host: Host) -> None:
    host.file("etc/docker/daemon.json", '{"debug": true}')
    host.file("etc/containerd/config.toml", DEBIAN)
    before = host.tree()
    host.install()
    (host.prefix / "etc/engines.json").unlink()
    host.uninstall()
    left = {k: v for k, v in host.tree().items() if isinstance(v, tuple) and v[1] is not False}
    assert left == {k: v for k, v in before.items() if isinstance(v, tuple) and v[1] is not False}


# Crashes and races


@pytest.mark.slow
def test_killed_at_any_write(host: Host) -> None:
    """The install is killed at its n-th write: each file is whole, the next run repairs it, uninstall leaves no trace."""
    names = ("docker", "containerd", "podman")
    for engine in names:
        for name, text in ENGINE_FILES[engine].items():
            host.file(name, text)
    before = host.tree()
    for step in itertools.count(1):
        pid = os.fork()
        if pid == 0:
            die_at(step)
            host.install(*names)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status in (0, 9)
        json.loads((host.root / "etc/docker/daemon.json").read_text())
        tomlkit.parse((host.root / "etc/containerd/config.toml").read_text())
        whole_folders = [*host.root.rglob("containers.conf.d/*"), *host.root.rglob("hooks.d/*")]
        assert not [path for path in whole_folders if path.name.startswith(".")]
        host.install(*names)
        host.uninstall(*names)
        left = {k: v for k, v in host.tree().items() if not k.endswith("gpu-hook-new")}
        assert left == before, f"killed at change {step}"
        if status == 0:
            break
    assert step > 20


@pytest.mark.slow
def test_killed_at_any_step_of_an_uninstall(host: Host) -> None:
    """The uninstall is killed at its n-th write; the next uninstall finishes it and leaves no trace."""
    names = ("docker", "crio")
    for engine in names:
        for name, text in ENGINE_FILES[engine].items():
            host.file(name, text)
    before = host.tree()
    for step in itertools.count(1):
        host.install(*names)
        pid = os.fork()
        if pid == 0:
            die_at(step, "rename", "unlink", "rmdir")
            host.uninstall(*names)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status in (0, 9)
        json.loads((host.root / "etc/docker/daemon.json").read_text())
        host.uninstall(*names)
        left = {k: v for k, v in host.tree().items() if not k.endswith("gpu-hook-new")}
        assert left == before, f"killed at step {step}"
        assert not (host.prefix / "etc/engines.json").exists()
        if status == 0:
            break
    assert step > 15


def die_at(step: int, *calls: str) -> None:
    """End this process at its `step`-th call that makes a change of a file last."""
    count = itertools.count(1)

    def counted(real: Any) -> Any:
        def call(*args: Any, **kw: Any) -> Any:
            if next(count) == step:
                os._exit(9)
            return real(*args, **kw)

        return call

    for name in calls or ("rename", "fsync", "fchmod"):
        setattr(os, name, counted(getattr(os, name)))


def test_two_at_once(host: Host) -> None:
    host.file("etc/docker/daemon.json", "{}")
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=host.install) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert not any(r.changed for r in host.install())
    host.uninstall()
    assert (host.root / "etc/docker/daemon.json").read_text() == "{}"
