"""Plan -> config.json."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from oci_hook.apply import to_spec
from oci_hook.core.grant import Grant, Identity, Life
from oci_hook.core.layout import ENV_SET, MARKER
from oci_hook.core.plan import Bind, DeviceNode, DeviceRule, EnvVar, Tmpfs

GRANT = Grant("k" * 32, Identity("/r", "id", "/b"), Life("b"), ())
PLAN = (
    Bind("/p/lib/container", "/run/gpu-hook", ("ro", "nosuid", "nodev", "noexec")),
    Tmpfs("/run/gpu-hook/account", 1024, 16, 0o1777),
    DeviceNode("/dev/nvidia3", 195, 3),
    DeviceNode("/dev/nvidia-uvm", 510, 0),
    DeviceRule(195, 3),
    DeviceRule(510, 0),
    Bind("/s/sim/gpus/3", "/dev/nvidia-sim/3", ("rw", "nosuid")),
    EnvVar("NVIDIA_VISIBLE_DEVICES", "GPU-3"),
    EnvVar("T9K_GPU_MEMORY", None),
    Bind("/p/libcuda.so.1", "/usr/lib64/libcuda.so.1"),
    Bind("/d/nvidia-smi", "/usr/bin/nvidia-smi"),
)


def test_from_nothing() -> None:
    spec = to_spec.apply({}, PLAN, GRANT)
    assert spec["annotations"] == {MARKER: "k" * 32 + " []"}
    assert spec["mounts"][0] == {
        "destination": "/run/gpu-hook",
        "type": "bind",
        "source": "/p/lib/container",
        "options": ["bind", "rprivate", "ro", "nosuid", "nodev", "noexec"],
    }
    assert spec["mounts"][1] == {
        "destination": "/run/gpu-hook/account",
        "type": "tmpfs",
        "source": "tmpfs",
        "options": ["nosuid", "nodev", "noexec", "size=1024", "nr_inodes=16", "mode=1777"],
    }
    assert [m["destination"] for m in spec["mounts"][2:]] == [
        "/dev/nvidia-sim/3",
        "/usr/lib64/libcuda.so.1",
        "/usr/bin/nvidia-smi",
    ]
    node = {"path": "/dev/nvidia3", "type": "c", "major": 195, "minor": 3, "fileMode": 0o666, "uid": 0, "gid": 0}
    assert spec["linux"]["devices"][0] == node
    assert spec["linux"]["resources"]["devices"] == [
        {"allow": False, "access": "rwm"},
        {"allow": True, "type": "c", "major": 195, "minor": 3, "access": "rw"},
        {"allow": True, "type": "c", "major": 510, "minor": 0, "access": "rw"},
    ]
    assert spec["process"] == {"env": ["NVIDIA_VISIBLE_DEVICES=GPU-3"]}


def original() -> dict[str, Any]:
    return {
        "ociVersion": "1.0.2",
        "x": {"unknown": [1, 2]},
        "annotations": {"gpu-hook.io/memory": "1Gi"},
        "process": {"args": ["a"], "env": ["A=1", "NVIDIA_VISIBLE_DEVICES=all", "B=2", "T9K_GPU_MEMORY=9", "A=3"]},
        "mounts": [{"destination": "/proc", "type": "proc"}, {"destination": "/data", "source": "/d", "type": "bind"}],
        "linux": {
            "devices": [{"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229}],
            "resources": {
                "memory": {"limit": 5},
                "devices": [
                    {"allow": False, "access": "rwm"},
                    {"allow": True, "type": "c", "major": 10, "minor": 229, "access": "rwm"},
                ],
            },
            "namespaces": [{"type": "pid"}],
        },
    }


def test_what_is_there_stays_in_its_order() -> None:
    before = original()
    spec = to_spec.apply(before, PLAN, GRANT)
    assert before == original()  # the argument is not changed
    assert spec["process"]["env"] == ["A=1", "B=2", "A=3", "NVIDIA_VISIBLE_DEVICES=GPU-3"]
    assert spec["mounts"][:2] == before["mounts"]
    assert spec["linux"]["devices"][:1] == before["linux"]["devices"]
    assert spec["linux"]["resources"]["devices"][:2] == before["linux"]["resources"]["devices"]
    assert spec["linux"]["resources"]["memory"] == {"limit": 5}
    assert spec["x"] == {"unknown": [1, 2]} and spec["process"]["args"] == ["a"]
    assert spec["annotations"]["gpu-hook.io/memory"] == "1Gi"


def test_a_node_of_the_same_path_is_replaced() -> None:
    before = original()
    before["linux"]["devices"].append({"path": "/dev/nvidia3", "type": "c", "major": 1, "minor": 3})
    nodes = to_spec.apply(before, PLAN, GRANT)["linux"]["devices"]
    assert [(d["path"], d["major"]) for d in nodes if "nvidia3" in d["path"]] == [("/dev/nvidia3", 195)]


def test_twice_is_once() -> None:
    once = to_spec.apply(original(), PLAN, GRANT)
    scrubbed = to_spec.scrub(json.loads(json.dumps(once)))
    again = to_spec.apply(scrubbed, PLAN, GRANT)
    assert again == once
    assert sorted(scrubbed["process"]["env"]) == sorted(original()["process"]["env"])  # it may narrow the request
    del scrubbed["process"]["env"]
    expected = original()
    del expected["process"]["env"]
    assert scrubbed == expected


def test_scrub_without_the_marker_is_nothing() -> None:
    spec = original()
    assert to_spec.scrub(spec) is spec


def test_scrub_with_a_forged_marker_takes_only_gpu_things() -> None:
    for marker in ("", "x", "k []", "k [1]", "k {}", "k 5", 'k ["PATH=/evil", "LD_PRELOAD=/x"]', "k [[[[", "k null"):
        spec = original()
        spec["annotations"][MARKER] = marker
        spec["mounts"].append({"destination": "/run/gpu-hook/x", "type": "bind", "source": "/"})
        scrubbed = to_spec.scrub(spec)
        assert scrubbed["mounts"] == original()["mounts"]
        assert scrubbed["linux"] == original()["linux"]
        assert scrubbed["process"]["env"] == ["A=1", "B=2", "A=3"]
        assert scrubbed["annotations"] == original()["annotations"]


def by_mount(*names: str) -> list[dict[str, Any]]:
    return [{"destination": name, "type": "bind", "source": "/dev/null", "options": ["bind", "ro"]} for name in names]


def test_requests_by_mount_are_taken_out_and_remembered() -> None:
    before = original()
    before["mounts"] += by_mount("/run/gpu-hook/request/memory=4Gi", "/run/gpu-hook/request/compute=30")
    once = to_spec.apply(before, PLAN, GRANT)
    assert not any("request" in m["destination"] for m in once["mounts"])
    scrubbed = to_spec.scrub(json.loads(json.dumps(once)))
    assert scrubbed["mounts"] == before["mounts"]
    assert to_spec.apply(scrubbed, PLAN, GRANT) == once
    # Also where the engine has put them back itself.
    assert (
        to_spec.scrub({**once, "annotations": {MARKER: "k []"}, "mounts": before["mounts"]})["mounts"]
        == (before["mounts"])
    )


def test_a_forged_marker_can_ask_and_mount_nothing_else() -> None:
    names = [
        "/run/gpu-hook/request/../../../etc/passwd",
        "/etc/passwd",
        "/run/gpu-hook/request",
        "/run/gpu-hook/request/",
    ]
    spec = {"annotations": {MARKER: "k " + json.dumps([*names, "/run/gpu-hook/request/gpus=1"])}}
    assert to_spec.scrub(spec)["mounts"] == by_mount("/run/gpu-hook/request/gpus=1")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(), v, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.text().map(lambda s: "x" + s), json_values, max_size=3), st.lists(st.text(), max_size=5))
def test_any_spec_keeps_what_is_not_ours(extra: dict[str, Any], env: list[str]) -> None:
    spec = {**extra, "process": {**extra, "env": env}, "linux": extra}
    done = to_spec.apply(spec, PLAN, GRANT)
    for key, value in extra.items():
        assert done[key] == value and done["process"][key] == value and done["linux"][key] == value
    kept = [e for e in env if e.partition("=")[0] not in ENV_SET]
    assert done["process"]["env"][: len(kept)] == kept
    assert to_spec.apply(to_spec.scrub(done), PLAN, GRANT)["mounts"] == done["mounts"]


def test_nodes_among_other_makers_nodes() -> None:
    """The marker remembers our nodes in /dev/dri by name; another maker's GPU there stays."""
    spec = original()
    spec["linux"]["devices"].append({"path": "/dev/dri/card0", "type": "c", "major": 226, "minor": 0})
    plan = (*PLAN, DeviceNode("/dev/dri/card1", 226, 1), DeviceRule(226, 1))
    for destination in ("/usr/lib64/libGLX_nvidia.so.0", "/etc/vulkan/icd.d/nvidia_icd.json", "/etc/10_nvidia.json"):
        plan = (*plan, Bind("/d/x", destination))
    edited = to_spec.apply(spec, plan, GRANT)
    assert [d["path"] for d in edited["linux"]["devices"]][-1] == "/dev/dri/card1"
    back = to_spec.scrub(edited)
    assert back["linux"]["devices"] == spec["linux"]["devices"] and back["mounts"] == spec["mounts"]
    assert not [r for r in back["linux"]["resources"]["devices"] if r.get("major") == 226]
    assert to_spec.apply(back, plan, GRANT) == edited
    forged = {**spec, "annotations": {MARKER: 'k ["/dev/fuse", "/dev/"]'}}
    assert to_spec.scrub(forged)["linux"]["devices"] == spec["linux"]["devices"]
