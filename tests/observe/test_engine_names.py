"""Names from the files of docker and podman, and what else may lie in their places. (Real engines: tests/engines.)"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from oci_hook.core.grant import Grant, Identity, Life
from oci_hook.observe.engine_names import Names, ids_of, look, named
from oci_hook.oci import engine_name

ID = "0123456789abcdef" * 4
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="files of others than root are not believed")


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_name, "DOCKER", str(tmp_path / "docker"))
    monkeypatch.setattr(engine_name, "DAEMON", str(tmp_path / "daemon.json"))
    monkeypatch.setattr(engine_name, "PODMAN", (str(tmp_path / "overlay-containers"),))


def grant(bundle: Path | str = "/nowhere", id: str = ID, born: int = 1, **who: str) -> Grant:
    return Grant(
        key="k" * 31 + id[:1], who=Identity("/run/x", id, str(bundle), **who), life=Life("boot"), shares=(), born=born
    )


def docker(root: Path, name: Any = "/web", id: str = ID, **more: Any) -> Path:
    file = root / "containers" / id / "config.v2.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"ID": id, "Name": name, **more}))
    return file


def mounting(bundle: Path, *sources: Any) -> Path:
    bundle.mkdir(parents=True, exist_ok=True)
    (bundle / "config.json").write_text(json.dumps({"mounts": [{"source": source} for source in sources]}))
    return bundle


def test_docker(tmp_path: Path) -> None:
    assert look(grant()) == ""
    docker(tmp_path / "docker")
    assert look(grant()) == "web" and ids_of("web") == {ID} and ids_of("") == ids_of("we") == set()
    assert [g.who.container for g in named((grant(), grant(id="other")))] == ["web", ""]


def test_dockers_other_folders(tmp_path: Path) -> None:
    docker(tmp_path / "said", "/said")
    (tmp_path / "daemon.json").write_text(json.dumps({"data-root": str(tmp_path / "said")}))
    assert look(grant()) == "said" and ids_of("said") == {ID}
    for text in ("", "[]", '{"data-root": 1}', '{"data-root": "said"}'):
        (tmp_path / "daemon.json").write_text(text)
        assert look(grant()) == ""
    docker(tmp_path / "mounted", "/mounted")
    bundle = mounting(tmp_path / "b", 1, None, "/etc/hosts", f"{tmp_path}/mounted/containers/{ID}/hosts")
    assert look(grant(bundle)) == "mounted"
    docker(tmp_path / "docker", "/first")  # the engine's own folder comes before what mounts say
    assert look(grant(bundle)) == "first"


@pytest.mark.parametrize("volatile", (False, True))
def test_podman(tmp_path: Path, volatile: bool) -> None:
    bundle = tmp_path / f"overlay-containers/{ID}/userdata"
    bundle.mkdir(parents=True)
    entries = [{"id": "other", "names": ["x"]}, {"id": ID, "names": ["db", "db2"]}]
    (tmp_path / f"overlay-containers/{'volatile-' * volatile}containers.json").write_text(json.dumps(entries))
    assert look(grant(bundle)) == "db" and ids_of("db") == {ID}
    assert look(grant("")) == "db" and look(grant("", id="f" * 64)) == ""  # podman's stage precreate knows no bundle
    elsewhere = mounting(tmp_path / f"graph/overlay-containers/{ID}/userdata", str(bundle / "hosts"))
    assert look(grant(elsewhere)) == "db"


@pytest.mark.parametrize(
    "entries",
    [
        None,
        {},
        [],
        [1],
        [{"id": ID}],
        [{"id": ID, "names": []}],
        [{"id": ID, "names": "db"}],
        [{"id": ID, "names": [1]}],
    ],
)
def test_podman_lists_that_are_none(tmp_path: Path, entries: Any) -> None:
    bundle = tmp_path / f"overlay-containers/{ID}/userdata"
    bundle.mkdir(parents=True)
    (tmp_path / "overlay-containers/containers.json").write_text(json.dumps(entries))
    assert look(grant(bundle)) == "" and ids_of("db") == set()


def test_what_is_not_believed(tmp_path: Path) -> None:
    """Another container's file, a file that others may write, a link, a FIFO, a file that is too large or no JSON."""
    file = docker(tmp_path / "docker")
    docker(tmp_path / "docker", ID=ID[::-1])
    assert look(grant()) == ""
    for name in (None, 1, ["web"]):
        docker(tmp_path / "docker", name)
        assert look(grant()) == ""
    docker(tmp_path / "docker")
    for mode in (0o664, 0o646):
        file.chmod(mode)
        assert look(grant()) == ""
    file.chmod(0o600)
    os.chown(file, 1, 0)
    assert look(grant()) == ""
    os.chown(file, 0, 0)
    assert look(grant()) == "web"
    for text in (b"", b"{", b"\xff", b"[" * 100_000, b" " * (16 << 20) + b"{}"):
        file.write_bytes(text)
        assert look(grant()) == ""
    docker(tmp_path / "docker")
    file.rename(tmp_path / "real")
    file.symlink_to(tmp_path / "real")
    assert look(grant()) == ""
    file.unlink()
    os.mkfifo(file)
    assert look(grant()) == ""


@pytest.mark.parametrize("id", ["", ".", "..", "a/b", "x" * 1024])
def test_odd_ids(tmp_path: Path, id: str) -> None:
    (tmp_path / "docker/containers").mkdir(parents=True)
    (tmp_path / "docker/containers/config.v2.json").write_text(json.dumps({"ID": id, "Name": "/x"}))
    assert look(grant(id=id)) == ""


def test_a_pods_container_keeps_its_name(tmp_path: Path) -> None:
    docker(tmp_path / "docker")
    (found,) = named((grant(namespace="ns", pod="p", container="c"),))
    assert found.who.container == "c"
    (found,) = named((grant(pod="p"),))
    assert found.who.container == ""


def test_podmans_lists_are_read_once_for_all_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, ids = tmp_path / "overlay-containers", [f"{n:064x}" for n in range(5)]
    folder.mkdir()
    entries = [{"id": id, "names": [f"job-{n}"]} for n, id in enumerate(ids)]
    (folder / "containers.json").write_text(json.dumps(entries))
    read: list[str] = []
    load = engine_name.load
    monkeypatch.setattr(engine_name, "load", lambda path: (read.append(os.path.basename(path)), load(path))[1])
    found = named(tuple(grant(folder / id / "userdata", id) for id in ids))
    assert [g.who.container for g in found] == [f"job-{n}" for n in range(5)]
    assert read.count("containers.json") == 1 == read.count("volatile-containers.json")


def test_names_are_remembered(tmp_path: Path) -> None:
    """For a while: then a renamed container has its new name; one whose files are gone keeps what it had."""
    file = docker(tmp_path / "docker", "/one")
    patient, quick = Names(1000), Names(0)
    for names in (patient, quick):
        assert names.named((grant(),))[0].who.container == "one"
    docker(tmp_path / "docker", "/two")
    assert patient.named((grant(),))[0].who.container == "one"
    assert quick.named((grant(),))[0].who.container == "two"
    file.unlink()
    assert quick.named((grant(),))[0].who.container == "two"
    assert quick.named((grant(born=2),))[0].who.container == ""  # another container under the same key
    assert patient.named((grant("/other"),))[0].who.container == ""  # adopted by a container that has no name
    assert patient.named(()) == () and patient.named((grant(),))[0].who.container == ""


@pytest.mark.parametrize("by", ("--data-root={root}", "--data-root {root}", "-g {root}", "--config-file {file}"))
def test_a_dockerd_that_keeps_its_data_elsewhere(tmp_path: Path, by: str) -> None:
    """Its command line, or the file that it was given, says where."""
    root, file, program = tmp_path / "elsewhere", tmp_path / "own.json", tmp_path / "bin/dockerd"
    docker(root)
    file.write_text(json.dumps({"data-root": str(root)}))
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho\nread end\n")
    program.chmod(0o755)
    assert ids_of("web") == set()
    with subprocess.Popen(
        [str(program), *by.format(root=root, file=file).split()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as p:
        assert p.stdout is not None and p.stdout.readline()
        assert ids_of("web") == {ID}
        p.kill()
    assert ids_of("web") == set()
