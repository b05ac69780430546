"""process_json.c under gcc's sanitizers: texts that were cut, changed and doubled at random places."""

import json
import random
import struct
import subprocess
from pathlib import Path

import pytest

from testbed import REPO
from testbed.compiled import compiled
from testbed.sanitize import ADDRESS, PATTERN, gcc, name

LAUNCHER = REPO / "oci_hook/launcher"
ROUNDS = 20_000
ENTRIES = b'NVIDIA_VISIBLE_DEVICES=GPU-1\0GPU_HOOK_CLASS=a"\\\x01\0NVIDIA_IMEX_CHANNELS\0'
PROCESS = {
    "terminal": False,
    "user": {"uid": 0, "additionalGids": [1, 2], "env": ["A=1"]},
    "args": ["sh", "-c", 'echo "env": [\\ "NVIDIA_VISIBLE_DEVICES=x"'],
    "env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_IMEX_CHANNELS", 'Q="', "É=\u2028"],
    "cwd": "/",
}
PIECES = (
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b'"env"',
    b'"ENV":',
    b"null",
    b"\0",
    b"\n",
    b"\xff",
    b"=",
    b" ",
)


@pytest.fixture(scope="module", params=(ADDRESS, (*ADDRESS, PATTERN)), ids=name)
def program(request: pytest.FixtureRequest) -> Path:
    sources = [REPO / "tests/launcher/process_json_main.c", LAUNCHER / "process_json.c"]
    flags = ["-std=c11", "-g", *request.param, "-fno-sanitize-recover=all"]
    return compiled("process_json", [gcc(request.param), *flags, *map(str, sources)])


def results(program: Path, pairs: list[tuple[bytes, bytes]]) -> list[bytes]:
    data = b"".join(struct.pack("I", len(text)) + text for pair in pairs for text in pair)
    done = subprocess.run([program], input=data, capture_output=True)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
    found, at = [], 0
    while at < len(done.stdout):
        (size,) = struct.unpack_from("I", done.stdout, at)
        found.append(done.stdout[at + 4 : at + 4 + size])
        at += 4 + size
    assert len(found) == len(pairs)
    return found


def changed(text: bytes, dice: random.Random) -> bytes:
    for _ in range(dice.randrange(4)):
        at = dice.randrange(len(text) + 1)
        what = dice.randrange(4)
        if what == 0:
            text = text[:at]
        elif what == 1:
            text = text[:at] + dice.choice(PIECES) + text[at:]
        elif what == 2:
            text = text[:at] + text[at + dice.randrange(1, 9) :]
        else:
            text = text[:at] + text[max(0, at - dice.randrange(40)) :]
    return text


def test_any_bytes(program: Path) -> None:
    """No read or write outside, and what is JSON before is JSON afterwards, but for `env` the same."""
    dice = random.Random(7)
    whole = [
        json.dumps(PROCESS, ensure_ascii=ascii, indent=indent).encode()
        for ascii in (False, True)
        for indent in (None, 1)
    ]
    pairs = [(changed(dice.choice(whole), dice), changed(ENTRIES, dice)) for _ in range(ROUNDS)]
    served = 0
    for (process, entries), found in zip(pairs, results(program, pairs), strict=True):
        try:
            before = json.loads(process)
        except ValueError:
            continue
        if not found or not isinstance(before, dict):
            continue
        try:
            values = [entry.decode() for entry in entries.split(b"\0")[:-1] if b"=" in entry]
        except UnicodeDecodeError:
            continue
        after = json.loads(found)
        assert {k: v for k, v in after.items() if k != "env"} == {k: v for k, v in before.items() if k != "env"}
        assert after["env"][len(after["env"]) - len(values) :] == values
        served += 1
    assert served > ROUNDS // 20


def test_sizes(program: Path) -> None:
    """Nothing, one byte, and entries that need six bytes for each of theirs."""
    pairs = [
        (b"", b""),
        (b"", ENTRIES),
        (b"{", b""),
        (b"{}", b""),
        (b"{}", b"A=" + b"\x01" * 65536 + b"\0"),
        (b"[" * 100_000, b""),
    ]
    pairs += [
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", ENTRIES),
        (b"{}", b"\0" * 1000),
        (b"{}", b"=\0" * 1000),
    ]
    found = results(program, pairs)
    assert found[:4] == [b"", b"", b"", b'{"env":[]}']
    assert json.loads(found[4]) == {"env": ["A=" + "\x01" * 65536]}
    assert found[5] == b"" and found[6].startswith(b'{"env":["NVIDIA_VISIBLE_DEVICES=GPU-1"')
    assert found[7] == b'{"env":[]}' and json.loads(found[8]) == {"env": ["="] * 1000}
