"""A plan as text: one line per step, in order."""

from oci_hook.apply import to_text
from oci_hook.core.plan import Bind, DeviceNode, DeviceRule, EnvVar, Tmpfs


def test_every_kind_of_step_has_its_line_in_order() -> None:
    plan = [
        Bind("/a", "/b"),
        Bind("/a", "/c", ("rw", "nosuid")),
        Tmpfs("/t", 1 << 20, 16, 0o1777),
        DeviceNode("/dev/nvidia0", 195, 0),
        DeviceRule(195, 0),
        EnvVar("A", "1"),
        EnvVar("B", None),
    ]
    assert to_text.lines(plan) == (
        "bind /a -> /b (ro,nosuid,nodev)",
        "bind /a -> /c (rw,nosuid)",
        "tmpfs /t (size 1048576, 16 inodes, mode 1777)",
        "node /dev/nvidia0 (c 195:0)",
        "allow c 195:0 rw",
        "env A=1",
        "env -B",
    )
    assert to_text.lines([]) == ()
    assert to_text.lines([EnvVar("A", "1")], late=True) == ("env A=1", to_text.LATE)
