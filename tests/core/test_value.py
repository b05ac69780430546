import os
import subprocess
import sys
from pathlib import Path

import pytest

from oci_hook.core.grant import Life, Share
from oci_hook.core.value import Value


class Point(Value):
    x: int
    y: int
    name: str = ""
    unit: "str | None" = None

    @property
    def sum(self) -> int:
        return self.x + self.y


def test_fields_are_the_annotations_in_order() -> None:
    assert Point.FIELDS == ("x", "y", "name", "unit")
    assert Point(1, y=2).fields() == {"x": 1, "y": 2, "name": "", "unit": None}
    assert tuple(Point(unit="mm", name="a", y=2, x=1).fields()) == Point.FIELDS
    assert Point(1, 2).sum == 3
    point = Point(1, 2)
    point.fields()["x"] = 5
    assert point.x == 1


@pytest.mark.parametrize(
    ("values", "named", "why"),
    [
        ((), {}, "needs x, y"),
        ((1,), {}, "needs x, y"),
        ((), {"x": 1, "name": ""}, "needs x, y"),
        ((1, 2, "", None, 5), {}, "no further field; its fields are x, y, name, unit"),
        ((1, 2), {"z": 3}, "no z; its fields are"),
        ((1,), {"z": 3}, "no z; its fields are"),
        ((1, 2), {"x": 3}, "twice"),
    ],
)
def test_a_field_that_is_missing_unknown_or_given_twice(
    values: tuple[object, ...], named: dict[str, object], why: str
) -> None:
    with pytest.raises(TypeError, match=f"Point.*{why}"):
        Point(*values, **named)  # type: ignore[arg-type]


def test_equal_by_content_and_class() -> None:
    assert Share("GPU-a", 1) == Share("GPU-a", 1, 0, 100, False)
    assert Share("GPU-a", 1) != Share("GPU-a", 2)
    assert Life("b") != Share("b", 1)
    assert hash(Share("GPU-a", 1)) == hash(Share(memory_mib=1, uuid="GPU-a"))


def test_replace_changes_a_copy() -> None:
    a = Share("GPU-a", 1)
    b = a.replace(memory_mib=5)
    assert (a.memory_mib, b.memory_mib, b.uuid) == (1, 5, "GPU-a")
    with pytest.raises(TypeError):
        a.replace(memory=5)


def test_repr_names_the_fields() -> None:
    assert (
        repr(Share("GPU-a", 1))
        == "Share(uuid='GPU-a', memory_mib=1, compute=0, compute_limit=100, whole=False, slot=0, request_mib=0)"
    )


def test_type_checkers_know_the_constructors(tmp_path: Path) -> None:
    """Each of these lines is an error, and the ones before them are none."""
    pytest.importorskip("mypy")
    wrong = ["Point()", "Point(1, 'a')", "Point(1, 2, z=3)", "Point(1, 2).x = 5", "Point(1, 2).z"]
    right = [
        "from oci_hook.core.value import Value",
        "class Point(Value):",
        "    x: int",
        "    y: int = 0",
        "Point(1, y=2)",
    ]
    program = tmp_path / "program.py"
    program.write_text("\n".join([*right, *wrong, ""]))
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "--cache-dir",
        tmp_path / "c",
        program,
    ]
    environment = {**os.environ, "MYPYPATH": str(Path(__file__).parents[2])}
    r = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    found = {int(line.split(":")[1]) for line in r.stdout.splitlines() if ": error:" in line}
    assert found == {len(right) + n for n in range(1, 6)}, r.stdout + r.stderr
