"""`exec` through the native launcher: a container with a grant gets the grant's variables; the rest is left alone.

The runtime is a recorder that writes down its words and the file of --process.
"""

import json
import os
import resource
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oci_hook.core.layout import MARKER
from oci_hook.core.plan import EnvVar
from oci_hook.ledger import exec_env
from oci_hook.ledger.store import grant_key
from testbed.long import draws
from tests.launcher.test_launcher import Place as Launcher

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="settings.yaml must belong to root")
ROOT = "/run/somewhere"
GRANT = {"NVIDIA_VISIBLE_DEVICES": "GPU-1", "GPU_HOOK_CLASS": 'a"\\\n', "NVIDIA_IMEX_CHANNELS": None}
SET = ["NVIDIA_VISIBLE_DEVICES=GPU-1", 'GPU_HOOK_CLASS=a"\\\n']
RECORDER = """#!/bin/sh
printf '%s\\0' "$@" > {root}/said
for word; do case $word in */proc/self/fd/*) cat "/proc/self/fd/${{word##*/}}" > {root}/seen; ls /proc/$$/fd > {root}/fds;; esac; done
exit 7
"""


class Place(Launcher):
    """grant(): the variables of a container's grant are there."""

    def __init__(self, root: Path, native: Path) -> None:
        super().__init__(root, native)
        (root / "runtime").write_text(RECORDER.format(root=root))
        self.state = root / "state"
        self.say(f"runtime: {root}/runtime\nmode: standalone\nstate_dir: {self.state}\n")
        self.file = root / "process.json"

    def grant(self, id: str = "x", root: str = ROOT, **values: str | None) -> Path:
        key = grant_key(root, id)
        folder = self.state / "pages" / key
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "env").unlink(missing_ok=True)
        exec_env.write(str(self.state), key, [EnvVar(name, value) for name, value in (values or GRANT).items()])
        return folder / "env"

    def words(self, *args: str) -> list[str]:
        """What the runtime was called with."""
        (self.root / "seen").unlink(missing_ok=True)
        done = subprocess.run([str(self.program), *args], cwd=self.bundle, capture_output=True, text=True)
        assert done.returncode == 7 and not done.stderr, done.stderr
        return (self.root / "said").read_text().split("\0")[:-1]

    def exec(self, process: str | bytes, id: str = "x") -> bytes | None:
        """The process file as the runtime sees it; None where it is called as we were."""
        self.file.write_bytes(process if isinstance(process, bytes) else process.encode())
        args = ["--root", ROOT, "exec", "--process", str(self.file), "--detach", id]
        words = self.words(*args)
        seen = self.root / "seen"
        if not seen.exists():
            assert words == args
            return None
        (file,) = [word for word in words if word.startswith("/proc/self/fd/")]
        assert words == ["--root", ROOT, "exec", "--process", file, "--detach", id]
        assert self.file.read_bytes() == (process if isinstance(process, bytes) else process.encode())
        return seen.read_bytes()


@pytest.fixture
def place(tmp_path: Path, native: Path) -> Place:
    return Place(tmp_path, native)


def test_the_variables_of_the_grant(place: Place) -> None:
    assert place.exec('{"env":["A=1"]}') is None  # no grant
    place.grant()
    image = [
        "A=1",
        "NVIDIA_VISIBLE_DEVICES=all",
        "NVIDIA_IMEX_CHANNELS=0",
        "NVIDIA_VISIBLE_DEVICES_OLD=1",
        "GPU_HOOK_CLASS",
    ]
    text = json.dumps({"args": ["sh"], "env": image, "cwd": "/"}, indent=2)
    found = place.exec(text)
    assert found is not None
    assert json.loads(found) == {"args": ["sh"], "env": ["A=1", "NVIDIA_VISIBLE_DEVICES_OLD=1", *SET], "cwd": "/"}
    assert found.startswith(b'{\n  "args": [\n    "sh"\n  ],\n  "env": [') and found.endswith(b'],\n  "cwd": "/"\n}')


@pytest.mark.parametrize(
    "text", ["{}", " { } ", '{"env":null}', '{"env":[]}', '{"env" : [ ] }', '{"env": ["NVIDIA_IMEX_CHANNELS=1"]}']
)
def test_an_empty_environment(place: Place, text: str) -> None:
    place.grant()
    found = place.exec(text)
    assert found is not None and json.loads(found) == {"env": SET}


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "{",
            "[]",
            "null",
            '{"env":{}}',
            '{"env":"A=1"}',
            '{"env":[1]}',
            '{"env":["a",]}',
            '{"env":[] "a":1}',
            '{"env"',
        ),
        *(
            '{"env":[],"env":[]}',
            '{"ENV":[]}',
            '{"Env":[],"env":[]}',
            '{"\\u0065nv":[]}',
            '{"a":[}',
            '{"a":"',
            '{"a":}',
            '{"env":["a]}',
        ),
    ],
)
def test_what_runtimes_could_read_in_two_ways_is_left_alone(place: Place, text: str) -> None:
    place.grant()
    assert place.exec(text) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just("env") | st.just('"env":["'),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.just("env"), inner, max_size=3)
    ),
    max_leaves=8,
)
names = st.sampled_from(
    ["A", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_IMEX_CHANNELS", "GPU_HOOK_CLASS", "GPU_HOOK_CLASSES", "É", ""]
)
entries = st.builds(lambda name, value: f"{name}={value}", names, st.text(max_size=6).filter(lambda t: "\0" not in t))
members = st.dictionaries(
    st.sampled_from(["args", "cwd", "user", "terminal", "ENVIRON", "environment"]), json_values, max_size=4
)


@settings(max_examples=draws(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(members, st.none() | st.lists(entries, max_size=4), st.booleans(), st.sampled_from([None, 1]), st.integers(0, 4))
def test_any_process(
    place: Place, others: dict[str, Any], env: list[str] | None, as_ascii: bool, indent: int | None, at: int
) -> None:
    """Whatever else is in it, only the grant's variables change, and as JSON readers see it nothing else does."""
    place.grant()
    items = list(others.items())
    items.insert(min(at, len(items)), ("env", env))
    found = place.exec(json.dumps(dict(items), ensure_ascii=as_ascii, indent=indent).encode("utf-8", "surrogatepass"))
    assert found is not None
    kept = [entry for entry in env or () if entry.partition("=")[0] not in GRANT]
    assert json.loads(found.decode("utf-8", "surrogatepass")) == {**others, "env": [*kept, *SET]}


def test_whose_grant(place: Place) -> None:
    """Of the root and id of the call; the root as Python writes it into the ledger."""
    place.grant(GPU_HOOK_CLASS="one")
    place.grant(id="y", GPU_HOOK_CLASS="two")
    place.grant(root=str(place.bundle / "r"), GPU_HOOK_CLASS="three")
    place.grant(root="/run/runc", GPU_HOOK_CLASS="four")
    place.grant(root="//a", GPU_HOOK_CLASS="five")
    place.grant(root="/", GPU_HOOK_CLASS="six")

    def of(*args: str) -> str:
        words = place.words(*args)
        return words[words.index("-e") + 3].partition("=")[2] if words.count("-e") > 1 else ""

    assert of("--root", ROOT, "exec", "-e", "A=", "x", "sh") == "one"
    assert of(f"--root={ROOT}", "exec", "-e", "A=", "y", "sh") == "two"
    assert of("--root", ROOT, "exec", "-e", "A=", "z", "sh") == ""
    for root in ("/run//somewhere", "/run/./x/../somewhere/", "/../run/somewhere", "///run/somewhere"):
        assert of("--root", root, "exec", "-e", "A=", "x", "sh") == "one", root
    for root in ("r", "./r", "q/../r/"):
        assert of("--root", root, "exec", "-e", "A=", "x", "sh") == "three", root
    assert of("exec", "-e", "A=", "x", "sh") == of("--root=", "exec", "-e", "A=", "x", "sh") == "four"
    assert (
        of("--root", "//a", "exec", "-e", "A=", "x", "sh")
        == of("--root", "//b/../a/", "exec", "-e", "A=", "x", "sh")
        == "five"
    )
    assert (
        of("--root", "/", "exec", "-e", "A=", "x", "sh") == of("--root", "/..", "exec", "-e", "A=", "x", "sh") == "six"
    )
    assert of("--root", "/a", "exec", "-e", "A=", "x", "sh") == ""


@pytest.mark.parametrize("file", ("state.json", "config.json"))
def test_the_record_of_the_runtime(place: Place, tmp_path: Path, file: str) -> None:
    """A record without this grant's annotation is that of a later container of the id."""
    root = tmp_path / "root"
    (root / "x").mkdir(parents=True)
    place.grant(root=str(root))
    args = ["--root", str(root), "exec", "-e", "A=", "x", "sh"]
    key, other = grant_key(str(root), "x"), grant_key(str(root), "y")
    for text, added in (
        (json.dumps({"config": {"labels": ["a=b", f"{MARKER}={key} 1"]}}), True),
        (json.dumps({"annotations": {MARKER: key}}, indent=1), True),
        (json.dumps({"annotations": {MARKER: key}}, separators=(",", ":")), True),
        (json.dumps({"labels": [f"{MARKER}={other}", f"{MARKER}={key}"]}), True),
        (json.dumps({"annotations": {MARKER: other}}), False),
        (json.dumps({"annotations": {"a": key}}), False),
        (f"{MARKER}={key[:-1]}", False),
        (MARKER, False),
        ("", False),
    ):
        (root / "x" / file).write_text(text)
        assert (place.words(*args) != args) is added, text
    (root / "x" / file).unlink()
    assert place.words(*args) != args  # a runtime whose records are elsewhere


def test_ids_of_any_length(place: Place) -> None:
    for size in (1, 47, 100, 112, 113, 114, 127, 128, 129, 240, 241, 242, 255, 256, 1024):
        place.grant(id="i" * size, GPU_HOOK_CLASS=str(size))
        assert f"GPU_HOOK_CLASS={size}" in place.words("--root", ROOT, "exec", "-e", "A=", "i" * size, "sh"), size
    args = ["--root", ROOT, "exec", "-e", "A=", "i" * 1025, "sh"]
    assert place.words(*args) == args


def test_a_command_on_the_command_line(place: Place) -> None:
    place.grant()
    args = ["--root", ROOT, "exec", "--env", "A=1", "-t", "--user=1", "x", "sh", "-c", "--process", "x"]
    given_env = [word for entry in SET for word in ("--env", entry)]
    assert place.words(*args) == [*args[:7], *given_env, *args[7:]]
    short = ["--root", ROOT, "exec", "-e", "A=1", "x", "--env"]
    assert place.words(*short) == [*short[:5], *[w.replace("--env", "-e") for w in given_env], *short[5:]]
    plain = ["--root", ROOT, "exec", "-t", "x", "env", "--env", "A=1"]  # crun's own environment would go with any --env
    assert place.words(*plain) == plain


@pytest.mark.parametrize(
    "args",
    [
        ["exec"],
        ["exec", "--help", "x"],
        ["exec", "--unknown", "x", "sh"],
        ["exec", "-th", "x", "sh"],
        ["exec", "-tx", "-e", "A=1", "x", "sh"],
        ["exec", "--", "x", "sh"],
        ["exec", "--process"],
        ["exec", "--help=false", "-e", "A=1", "x", "sh"],
        ["exec", "--process", "/nowhere", "x"],
        ["exec", "--process", "{folder}", "x"],
        ["exec", "--process", "{large}", "x"],
        ["state", "x"],
        ["delete", "exec"],
    ],
)
def test_a_call_that_is_not_understood_is_left_alone(place: Place, args: list[str]) -> None:
    place.grant()
    with open(place.root / "large", "wb") as f:
        f.write(b"{}")
        f.truncate((16 << 20) + 1)
    args = [
        "--root",
        ROOT,
        *(a.format(folder=place.root, large=place.root / "large") for a in args),
    ]
    assert place.words(*args) == args


@pytest.mark.parametrize(
    "flags",
    [
        ["--tty=false", "--process={file}"],
        ["--detach=true", "-process", "{file}"],
        ["--pidfd-socket", "s", "-p", "{file}"],
        ["-td", "-p={file}"],
        ["-p{file}"],
        ["-tdp{file}", "-u", "1"],
        ["-tdp", "{file}"],
    ],
)
def test_every_spelling_of_a_process_file(place: Place, flags: list[str]) -> None:
    """Those of Go's flags, and of crun and youki, which take letters in one word. The file is all that changes."""
    place.grant()
    place.file.write_text("{}")
    words = place.words("--root", ROOT, "exec", *(f.format(file=place.file) for f in flags), "x")
    (ours,) = [f"/proc/self/fd/{word.rpartition('/')[2]}" for word in words if "/proc/self/fd/" in word]
    assert words == ["--root", ROOT, "exec", *(f.format(file=ours) for f in flags), "x"]
    assert "GPU_HOOK_CLASS" in (place.root / "seen").read_text()


def test_a_variable_in_the_word_of_its_flag(place: Place) -> None:
    place.grant()
    words = place.words("--root", ROOT, "exec", "-teA=1", "x", "sh")
    assert words == ["--root", ROOT, "exec", "-teA=1", *(w for entry in SET for w in ("-e", entry)), "x", "sh"]


def test_the_last_process_file_counts(place: Place) -> None:
    place.grant()
    place.file.write_text("{}")
    words = place.words("--root", ROOT, "exec", "-p", "/nowhere", "-p", str(place.file), "x")
    assert (
        words[:6] == ["--root", ROOT, "exec", "-p", "/nowhere", "-p"]
        and words[6].startswith("/proc/self/fd/")
        and words[7:] == ["x"]
    )


def test_a_process_from_a_pipe(place: Place) -> None:
    """What we read from it the runtime gets, whatever it is; named pipes and those of a shell alike."""
    place.grant()
    pipe = place.root / "pipe"
    os.mkfifo(pipe)
    for piped, seen in (('{"env":["A=1"]}', '{"env":["A=1",'), ("[no JSON", "[no JSON"), ("", "")):
        (place.root / "seen").unlink(missing_ok=True)
        script = f"printf %s '{piped}' > {pipe} & exec {place.program} --root {ROOT} exec --process {pipe} x"
        done = subprocess.run(["sh", "-c", script], cwd=place.bundle, capture_output=True, text=True, timeout=60)
        assert done.returncode == 7, done.stderr
        assert (place.root / "seen").read_text().startswith(seen)
        assert ("GPU_HOOK_CLASS" in (place.root / "seen").read_text()) == (piped[:1] == "{")


def test_a_pipe_that_the_runtime_gets_itself_is_not_read(place: Place) -> None:
    """For a word that is too long to be written anew: the runtime would wait for a second writer."""
    place.grant()
    pipe = place.root / "pipe"
    os.mkfifo(pipe)
    call = f"{place.program} --root {ROOT} exec -{'t' * 60}p{pipe} x"
    script = f"printf %s '{{}}' > {pipe} & {call}; timeout 5 cat {pipe}; kill $! 2>/dev/null"
    done = subprocess.run(["sh", "-c", script], cwd=place.bundle, capture_output=True, text=True, timeout=60)
    assert done.stdout == "{}" and f"p{pipe}" in (place.root / "said").read_text()


def test_our_file_is_none_that_a_container_inherits(place: Place) -> None:
    """--preserve-fds hands descriptors from 3 on to the container; ours is far above."""
    place.grant()
    assert place.exec("{}") is not None
    own = [int(fd) for fd in (place.root / "fds").read_text().split()]
    assert [fd for fd in own if 3 <= fd < 10] == [] and any(fd >= 200 for fd in own), own


def test_few_descriptors(place: Place) -> None:
    place.grant()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (150, before[1]))
    try:
        assert b"GPU_HOOK_CLASS" in (place.exec("{}") or b"")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_damaged_file_of_the_grant(place: Place) -> None:
    """Cut short, empty, too large, no file: the `exec` goes on, with what is whole."""
    file = place.grant()
    file.write_bytes(b"")
    assert place.exec('{"env":[]}') == b'{"env":[]}'
    file.write_bytes(b"GPU_HOOK_CLASS=1\0GPU_HOOK_MEM")
    assert place.exec('{"env":[]}') == b'{"env":["GPU_HOOK_CLASS=1"]}'
    file.write_bytes(b"GPU_HOOK_CLASS=1\0" + bytes(1 << 16))
    assert place.exec("{}") is None
    file.unlink()
    file.symlink_to("/proc/self/environ")
    assert place.exec("{}") is None
    file.unlink()
    os.mkfifo(file)
    assert place.exec("{}") is None


def test_a_state_directory_that_is_none(place: Place) -> None:
    place.grant()
    for line in ("state_dir: relative", "state_dir: [a]", f"state_dir: {place.root}/other", "state_dir:", "junk"):
        place.say(f"runtime: {place.root}/runtime\nmode: standalone\n{line}\n")
        assert place.exec("{}") is None
