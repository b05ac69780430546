"""config.json: what is refused, and that parts that we do not know survive an edit."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oci_hook.errors import ApplyError, refuse
from oci_hook.oci import spec


def refused(path: Path) -> str:
    with pytest.raises(ApplyError) as e:
        spec.load(str(path))
    assert [p.code for p in e.value.problems] == ["GH-401"]
    assert str(path) in str(e.value) or len(str(e.value)) > 250
    return str(e.value)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b'{"a": 1',
        b"[]",
        b"1",
        b"null",
        b'{"a": NaN}',
        b"{} x",
        b"\xff{}",
        b"\xef\xbb\xbf{}",
        b"[" * 100000,
        b'{"a": ' * 100000,
        b"1" * 5000,
        b'{"annotations": []}',
        b'{"annotations": {"a": 1}}',
        b'{"process": []}',
        b'{"process": {"env": {}}}',
        b'{"process": {"env": [1]}}',
        b'{"root": "/x"}',
        b'{"root": {"path": 5}}',
        b'{"mounts": {}}',
        b'{"mounts": ["x"]}',
        b'{"mounts": [{"destination": 1}]}',
        b'{"mounts": [{"options": "ro"}]}',
        b'{"mounts": [{"options": [1]}]}',
        b'{"linux": 1}',
        b'{"linux": {"devices": {}}}',
        b'{"linux": {"devices": [1]}}',
        b'{"linux": {"resources": {"devices": [null]}}}',
        b'{"linux": {"resources": []}}',
    ],
)
def test_not_a_spec(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(text)
    refused(file)
    assert file.read_bytes() == text


# For each object of the spec that we judge or edit: the path of keys to it, and a name in it.
NAMES = [
    *((name,) for name in ("annotations", "process", "root", "mounts", "hooks", "linux", "ociVersion")),
    *(("process", name) for name in ("env", "args", "cwd")),
    ("root", "path"),
    *(("linux", name) for name in ("devices", "resources", "namespaces", "maskedPaths")),
    ("linux", "resources", "devices"),
    *(("linux", "resources", "devices", 0, name) for name in ("allow", "type", "major", "minor", "access")),
    *(("linux", "devices", 0, name) for name in ("path", "type", "major", "minor")),
    *(("mounts", 0, name) for name in ("destination", "type", "source", "options")),
    *(("hooks", name) for name in ("prestart", "createRuntime", "poststop")),
    *(("hooks", "prestart", 0, name) for name in ("path", "args", "env")),
]


def deep(where: tuple[str | int, ...], value: str) -> str:
    """JSON text in which `value`, the text of a JSON object's inside, is the object at that place."""
    text = "{" + value + "}"
    for key in reversed(where):
        text = f"[{text}]" if key == 0 else "{" + json.dumps(key) + ": " + text + "}"
    return text


def spellings(name: str) -> list[str]:
    """A spelling that only Go's encoding/json takes for the name (bytes.EqualFold)."""
    found = [name.upper(), name.capitalize(), name[:-1] + name[-1].upper(), name.swapcase()]
    found += [name.replace("s", "\u017f", 1), name.replace("k", "\u212a", 1)]
    return sorted({each for each in found if each != name})


@pytest.mark.parametrize("where", NAMES, ids=lambda w: ".".join(map(str, w)))
def test_names_that_only_some_runtimes_would_take(tmp_path: Path, where: tuple[str | int, ...]) -> None:
    file = tmp_path / "config.json"
    *above, name = where
    assert isinstance(name, str)
    for other in spellings(name):
        for text in (json.dumps(other), json.dumps(other, ensure_ascii=False)):
            file.write_text(deep(tuple(above), f"{text}: null"))
            assert "runc would take it for that" in refused(file)
    file.write_text(deep(tuple(above), f'"{name}": null, "{name}": null'))
    assert "key twice" in refused(file)
    escaped = f"\\u{ord(name[0]):04x}{name[1:]}"
    file.write_text(deep(tuple(above), f'"{name}": null, "{escaped}": null'))
    assert "key twice" in refused(file)
    for fine in (name, "x" + name, name + "x", "X-" + name.upper()):
        file.write_text(deep(tuple(above), f'"{fine}": null'))
        spec.load(str(file))


def test_where_case_is_the_users(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    doc = {
        "annotations": {"Linux": "1", "linux": "2", "LINUX": "3", "Mounts": ""},
        "process": {"env": ["PATH=/", "Path=/x", "path=/y"], "capabilities": {"Bounding": []}},
        "linux": {"seccomp": {"Path": 1, "path": 2}, "sysctl": {"KERNEL.x": "1"}},
    }
    file.write_text(json.dumps(doc))
    assert spec.load(str(file)) == doc


def test_not_a_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    refused(file)
    file.mkdir()
    assert "not a regular file" in refused(file)
    file.rmdir()
    os.mkfifo(file)
    assert "not a regular file" in refused(file)
    file.unlink()
    (tmp_path / "other").write_text("{}")
    file.symlink_to("other")
    assert "symbolic link" in refused(file)
    file.unlink()
    with open(file, "wb") as f:
        f.truncate(spec.MAX_SIZE + 1)
    assert "more than" in refused(file)


def test_null_is_empty(tmp_path: Path) -> None:
    """Go writes null for an empty list or map."""
    file = tmp_path / "config.json"
    file.write_text(
        '{"annotations": null, "process": {"env": null}, "mounts": null, "root": null,'
        ' "linux": {"devices": null, "resources": {"devices": null}}}'
    )
    doc = spec.load(str(file))
    assert spec.environment(doc) == {}
    assert spec.rootfs(doc, "/b") == "/b/rootfs"
    file.write_text('{"process": null, "linux": null}')
    assert spec.environment(spec.load(str(file))) == {}


def test_environment_and_rootfs() -> None:
    doc: dict[str, Any] = {"process": {"env": ["A=1", "B", "A=2=3", "=x"]}, "root": {"path": "r"}}
    assert spec.environment(doc) == {"A": "2=3", "": "x"}
    assert spec.rootfs(doc, "/b") == "/b/r"
    assert spec.rootfs({"root": {"path": "/r"}}, "/b") == "/r"


numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v), max_leaves=8
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(unknown=st.dictionaries(st.text().map(lambda s: "x" + s), values))
def test_what_is_unknown_survives(tmp_path: Path, unknown: dict[str, Any]) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(unknown))
    spec.save(str(file), spec.load(str(file)))
    assert json.loads(file.read_text()) == unknown
    assert [type(v) for v in json.loads(file.read_text()).values()] == [type(v) for v in unknown.values()]


def test_big_numbers_survive(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"a": 18446744073709551615, "b": -9223372036854775808, "c": 1.0, "d": 1e300, "e": "\\ud800"}')
    spec.save(str(file), spec.load(str(file)))
    text = file.read_text()
    assert json.loads(text)["a"] == 18446744073709551615
    assert '"c":1.0' in text and '"d":1e+300' in text and '"e":"\\ud800"' in text


def test_save_keeps_owner_and_mode(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("{}")
    file.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(file, 12, 34)
    before = file.stat()
    (tmp_path / spec.TEMPORARY).write_text("left by one who was killed")
    spec.save(str(file), {"a": 1})
    after = file.stat()
    assert (after.st_uid, after.st_gid, after.st_mode) == (before.st_uid, before.st_gid, before.st_mode)
    assert after.st_ino != before.st_ino
    assert json.loads(file.read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["config.json"]


def test_save_that_fails_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("{}")
    file.chmod(0o444)
    with pytest.raises(ApplyError, match="GH-401"):
        spec.save(str(file), {"a": 1})
    file.chmod(0o644)
    with pytest.raises(ApplyError, match="GH-401"):
        spec.save(str(file), {"a": float("inf")})
    with pytest.raises(ApplyError, match="GH-401"):
        spec.save(str(tmp_path / "none/config.json"), {})
    (tmp_path / "gone").mkdir()
    with pytest.raises(ApplyError, match="GH-401"):
        spec.save(str(tmp_path / "gone/config.json"), {})
    assert file.read_text() == "{}"
    assert sorted(os.listdir(tmp_path)) == ["config.json", "gone"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


@pytest.mark.parametrize("call", ["write", "rename"])
def test_a_deadline_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}")
    real = getattr(os, call)

    def late(*words: Any, **more: Any) -> None:
        real(*words, **more)
        raise refuse("GH-405", "it took too long")

    monkeypatch.setattr(os, call, late)
    with pytest.raises(ApplyError, match="^GH-405: "):
        spec.replace(str(path), b'{"a": 1}')
    assert path.read_text() == ("{}" if call == "write" else '{"a": 1}')
    assert os.listdir(tmp_path) == ["config.json"]
