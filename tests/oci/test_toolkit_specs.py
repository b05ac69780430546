"""CDI specs that NVIDIA's own `nvidia-ctk` wrote, applied to a config.json, in modes below and on-top; and what they may become."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from oci_hook.apply import bundle_plan, to_spec
from oci_hook.config.settings import Settings
from oci_hook.core.boundary import limit_of
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.inventory import DriverFile, Gpu, Inventory
from oci_hook.core.layout import MEMORY_WORDS
from oci_hook.core.nvidia_runtime_mode import memory_words
from oci_hook.core.plan import device_nodes
from oci_hook.core.rules import Rules
from oci_hook.errors import ApplyError
from oci_hook.oci import nvidia_edits, nvidia_hooks
from testbed import REPO

FOLDER = Path(__file__).parent / "toolkit_specs"
SPECS = sorted(file.stem for file in FOLDER.glob("*.json"))
WITH_LIMITS = [name for name in SPECS if name.startswith("1.20.1") and "management" not in name]
GPUS = (
    Gpu("GPU-51de0000-d7b3-50e9-baab-f73b5a1556bf", 0, 0, 8192, no_limits=""),
    Gpu("GPU-51de0001-c18b-5c53-b2f7-3338a2c652bd", 1, 1, 8192, no_limits=""),
)
NUMBERS = {
    "/dev/nvidia0": (195, 0),
    "/dev/nvidia1": (195, 1),
    "/dev/nvidiactl": (195, 255),
    "/dev/nvidia-modeset": (195, 254),
}
NUMBERS |= {"/dev/nvidia-uvm": (510, 0), "/dev/nvidia-uvm-tools": (510, 1)}
LIBDIR = "/usr/lib/x86_64-linux-gnu"
ROOT = "/run/nvidia/driver"
OWN = to_spec.own_hook("/opt/gpu-hook")
OURS = {"path": OWN, "args": ["oci-gpu-hook", "createRuntime"]}
LIMITS = {
    "path": "/usr/bin/nvidia-cdi-hook",
    "args": ["nvidia-cdi-hook", "apply-cuda-memory-limits", "--driver-root", "", "--gpu-id", GPUS[0].uuid],
    "env": ["NVIDIA_CTK_DEBUG=false"],
}
HOSTILE = [*(f"{name}=999999" for name in MEMORY_WORDS), MEMORY_WORDS[1]]  # the last: a name without a value


def inventory(*gpus: Gpu) -> Inventory:
    files = tuple(
        DriverFile(f"{ROOT}{LIBDIR}/{name}.615.71.0", "library", capability, (f"{name}.1",))
        for name, capability in (
            ("libcuda.so", "compute"),
            ("libnvidia-ptxjitcompiler.so", "compute"),
            ("libnvidia-ml.so", "utility"),
        )
    )
    cuda, nvml = f"{ROOT}{LIBDIR}/libcuda.so.615.71.0", f"{ROOT}{LIBDIR}/libnvidia-ml.so.615.71.0"
    return Inventory("b", "615.71.0", ROOT, False, gpus or GPUS, (), files, cuda, nvml)


def grant(*shares: Share) -> Grant:
    return Grant("k", Identity("/r", "c", "/b"), Life("b"), shares or (Share(GPUS[0].uuid, 1024),))


def applied(cdi: dict[str, Any], *names: str, env: Sequence[str] = (), hooks: Any = None) -> Any:
    """A config.json with these devices, as the CDI package puts them there: what all have first, then each device's."""
    spec: dict[str, Any] = {
        "process": {"env": [*env]},
        "mounts": [],
        "hooks": {stage: [*entries] for stage, entries in (hooks or {}).items()},
        "linux": {"devices": [], "resources": {"devices": []}},
    }
    for edits in [cdi["containerEdits"], *(d["containerEdits"] for d in cdi["devices"] if d["name"] in names)]:
        spec["process"]["env"] += edits.get("env", [])
        for mount in edits.get("mounts", []):
            options = [*mount["options"], "bind"]
            spec["mounts"].append(
                {"destination": mount["containerPath"], "source": mount["hostPath"], "options": options}
            )
        for node in edits.get("deviceNodes", []):
            major, minor = NUMBERS[
                node["path"]
            ]  # where the spec has none, the CDI package takes those of the host's node
            number = {"type": "c", "major": major, "minor": minor}
            spec["linux"]["devices"].append({"path": node["path"], **number})
            spec["linux"]["resources"]["devices"].append({"allow": True, **number, "access": "rwm"})
        for hook in edits.get("hooks", []):
            entry = {key: value for key, value in hook.items() if key != "hookName"}
            spec["hooks"].setdefault(hook["hookName"], []).append(entry)
    return spec


def read(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


def verbs(spec: Any) -> list[str]:
    return [
        nvidia_hooks.subcommand(entry)[0]
        for stage in spec["hooks"].values()
        for entry in stage
        if nvidia_hooks.program(entry)
    ]


def same(one: str, other: str) -> bool:
    return one == other


def narrowed(spec: Any, granted: Grant) -> Any:
    listed = inventory()
    return nvidia_edits.narrow(spec, granted, listed, device_nodes(granted, listed), same)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("device", ["0", "1", "all"])
@pytest.mark.parametrize("name", SPECS)
def test_below(name: str, device: str, whole: bool) -> None:
    """Every hook that the toolkit wrote is known, and nothing stays that brings a library or a limit of its own."""
    found = narrowed(applied(read(name), device), grant(Share(GPUS[0].uuid, 8192 if whole else 1024, whole=whole)))
    assert found.unknown == () and found.files and not found.late
    known = {*nvidia_edits.HARMLESS, nvidia_edits.LINKS}
    assert set(verbs(found.spec)) <= known and "update-ldcache" in verbs(found.spec)
    words = [word for stage in found.spec["hooks"].values() for entry in stage for word in entry["args"]]
    assert not any("libcuda.so" in word or "libnvidia-ml.so" in word for word in words)
    assert any("libGLX_nvidia" in word for word in words), "links to other libraries stay"
    assert (name == "1.20.1-branch-nvidia-ctk") == ("chmod" in verbs(found.spec))
    left = [mount["destination"].rpartition("/")[2].partition(".so")[0] for mount in found.spec["mounts"]]
    assert not {"libcuda", "libnvidia-ml"} & set(left) and "libnvidia-ptxjitcompiler" in left
    assert ("libnvoptix" in left) == ("nvidia-cuda-mps-server" in left) == whole
    assert "/dev/nvidia1" not in [node["path"] for node in found.spec["linux"]["devices"]]


@pytest.mark.parametrize("name", SPECS)
def test_on_top(name: str) -> None:
    """There the toolkit adds its hooks after ours, which then sees all of them in config.json."""
    words = memory_words(grant(), inventory(), Rules(), "system.slice:docker:c")
    said = [f"{key}={value}" for key, value in words.items() if value]
    assert "NVIDIA_GPU_MEMORY_LIMIT=1024" in said and len(said) == 2
    spec = applied(read(name), "0", "all", env=said, hooks={"createRuntime": [OURS]})
    nvidia_edits.check_hooks(spec, OWN, words)
    assert (name in WITH_LIMITS) == (nvidia_edits.LIMITS in verbs(spec))


@pytest.mark.parametrize("name", SPECS)
def test_who_asks_for_nothing(name: str) -> None:
    spec = nvidia_edits.decline(applied(read(name), "all"), inventory())
    assert spec["hooks"] == {} and spec["linux"]["devices"] == [] and not nvidia_edits.injected(spec)


# --- the variables of the memory hook ---


def theirs(spec: Any) -> "tuple[int, int] | None":
    """What the toolkit's hook sets on each GPU, as the branch's source reads config.json: the names with an S come first, of two entries
    of one name the first one counts, and where one of the two is absent it sets nothing."""
    env = dict(entry.split("=", 1) for entry in reversed(spec["process"]["env"]))
    request, limit = (
        env.get(f"NVIDIA_GPU_MEMORY_{w}S", env.get(f"NVIDIA_GPU_MEMORY_{w}")) for w in ("REQUEST", "LIMIT")
    )
    return None if request is None or limit is None else (int(request), int(limit))


NO_LIMITS = (GPUS[0].replace(no_limits="driver 580 is older than 615"), GPUS[1])
SHARES = [
    ("one share", (Share(GPUS[0].uuid, 1024),), GPUS, True),
    ("less is booked", (Share(GPUS[0].uuid, 1024, request_mib=512),), GPUS, True),
    ("two of one size", (Share(GPUS[0].uuid, 1024), Share(GPUS[1].uuid, 1024)), GPUS, True),
    ("two of two sizes", (Share(GPUS[0].uuid, 1024), Share(GPUS[1].uuid, 4096)), GPUS, False),
    ("one whole", (Share(GPUS[0].uuid, 8192, whole=True),), GPUS, False),
    ("one whole, one share", (Share(GPUS[0].uuid, 8192, whole=True), Share(GPUS[1].uuid, 4096)), GPUS, False),
    ("no GPU that can", (Share(GPUS[0].uuid, 1024),), NO_LIMITS, False),
    ("one GPU that can", (Share(GPUS[0].uuid, 1024), Share(GPUS[1].uuid, 1024)), NO_LIMITS, False),
]


@pytest.mark.parametrize(("mode", "lends"), [("on-top", 100), ("on-top", 200), ("below", 100)])
@pytest.mark.parametrize(("shares", "gpus", "said_so"), [row[1:] for row in SHARES], ids=[row[0] for row in SHARES])
def test_the_variables_are_the_grants(
    mode: str, lends: int, shares: Any, gpus: Any, said_so: bool, tmp_path: Path
) -> None:
    """Whatever the container said; as the toolkit reads them, they are what our own boundary sets, or nothing."""
    rules = Rules(driver_limit_extra=8, oversubscribe=lends)
    ours = limit_of(shares[0], rules)
    pair = (ours.soft >> 20, ours.hard >> 20) if said_so else None
    (tmp_path / "rootfs").mkdir()
    granted, listed = grant(*shares), inventory(*gpus)
    for count in range(len(HOSTILE) + 1):
        for said in itertools.combinations(HOSTILE, count):
            doc: Any = {
                "root": {"path": str(tmp_path / "rootfs")},
                "process": {"args": ["a"], "env": ["A=1", *said, *said]},
                "linux": {"cgroupsPath": "kubepods-burstable.slice:cri-containerd:0123"},
            }
            settings = Settings("/opt/gpu-hook", mode=mode, rules=rules)
            plan = bundle_plan.plan_for(doc, str(tmp_path), granted, listed, settings)
            spec = to_spec.apply(plan.spec, plan.steps, granted)
            assert theirs(spec) == pair
            assert to_spec.scrub(spec)["process"]["env"] == ["A=1", *said, *said]


@pytest.mark.parametrize(
    ("cgroup", "found"),
    [
        ("system.slice:docker:0123", True),
        (":docker:0123", True),
        ("-.slice:docker:0123", True),
        ("kubepods-besteffort-pod1_2.slice:crio:0123", True),
        ("", False),
        ("/docker/0123", False),
        ("docker:0123", False),
        ("system.slice:docker:0123:4", False),
        ("system:docker:0123", False),
        (".slice:docker:0123", False),
        ("a/b.slice:docker:0123", False),
        ("a--b.slice:docker:0123", False),
    ],
)
def test_the_hook_has_its_variables_where_it_finds_the_cgroup(cgroup: str, found: bool) -> None:
    """Elsewhere it fails if it has them, and the container does not start."""
    assert (memory_words(grant(), inventory(), Rules(), cgroup)["NVIDIA_GPU_MEMORY_LIMIT"] == "1024") == found


def test_variables_that_were_changed_after_us_are_refused() -> None:
    words = memory_words(grant(), inventory(), Rules(), "system.slice:docker:c")
    right = [f"{key}={value}" for key, value in words.items() if value]
    hooks = {"createRuntime": [OURS, LIMITS]}
    nvidia_edits.check_hooks({"process": {"env": right}, "hooks": hooks}, OWN, words)
    for wrong in (
        [],
        right[:1],
        [*right, HOSTILE[0]],
        [*right, HOSTILE[3]],
        [right[0], "NVIDIA_GPU_MEMORY_LIMIT=1025"],
    ):
        with pytest.raises(ApplyError, match="GH-409: .*not the share"):
            nvidia_edits.check_hooks({"process": {"env": wrong}, "hooks": hooks}, OWN, words)
        earlier = {"createRuntime": [LIMITS, OURS]}  # what it sets then is set again by ours
        nvidia_edits.check_hooks({"process": {"env": wrong}, "hooks": earlier}, OWN, words)
    absent = dict.fromkeys(MEMORY_WORDS)
    nvidia_edits.check_hooks({"process": {"env": ["A=1"]}, "hooks": hooks}, OWN, absent)


# --- names that nobody knows yet ---


def call(*words: str, path: str = "/usr/bin/nvidia-cdi-hook", env: Sequence[str] = ()) -> Any:
    return {"path": path, "args": list(words), "env": [*env]}


UNKNOWN = {
    "a new hook": call("nvidia-cdi-hook", "mount-all"),
    "of nvidia-ctk": call("nvidia-ctk", "hook", "mount-all", path="/usr/bin/nvidia-ctk"),
    "another command of nvidia-ctk": call("nvidia-ctk", "chmod", path="/usr/bin/nvidia-ctk"),
    "a known name behind it": call("nvidia-cdi-hook", "mount-all", "chmod"),
    "a known name as a flag's word": call("nvidia-cdi-hook", "mount-all", "--then", "update-ldcache"),
    "a flag before it": call("nvidia-cdi-hook", "--plugin", "chmod"),
    "a flag with a word": call("nvidia-ctk", "--config", "/x", "hook", "chmod", path="/usr/bin/nvidia-ctk"),
    "after a known flag": call("nvidia-cdi-hook", "--debug", "mount-all"),
    "no words": call(),
    "a program's name alone": call("nvidia-cdi-hook"),
    "words that are none": {"path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", 7, "chmod"]},
    "args that are none": {"path": "/usr/bin/nvidia-cdi-hook", "args": "chmod"},
    "in capitals": call("nvidia-cdi-hook", "CHMOD"),
    "padded": call("nvidia-cdi-hook", "chmod "),
    "another binary": call("nvidia-cdi-hook", "chmod", path="/opt/else/nvidia-cdi-hook-2"),
    "a path that climbs": call("nvidia-cdi-hook", "mount-all", path="/usr/bin/../../opt/nvidia-cdi-hook.real"),
    "by env": call("env", "nvidia-cdi-hook", "chmod", path="/usr/bin/env"),
    "by a shell": call("sh", "-c", "exec /usr/bin/nvidia-cdi-hook mount-all", path="/bin/sh"),
    "a new program of the toolkit": call("nvidia-container-mounts", path="/usr/bin/nvidia-container-mounts"),
    "preloaded": call("nvidia-cdi-hook", "chmod", env=["LD_PRELOAD=/x.so"]),
    "nothing but flags": call("nvidia-cdi-hook", *["--debug"] * 5000),
    "no environment at all": {**call("nvidia-cdi-hook", "chmod"), "env": 7},
    "an environment that is none": {**call("nvidia-cdi-hook", "chmod"), "env": [7]},
    "limits of another container": call(
        "nvidia-cdi-hook", nvidia_edits.LIMITS, "--container-spec", "/x", "--gpu-id", "GPU-0"
    ),
    "limits by a flag": call("nvidia-cdi-hook", nvidia_edits.LIMITS, "--limit=99999"),
    "limits with one dash": call("nvidia-cdi-hook", nvidia_edits.LIMITS, "-container-spec=/x"),
}
STAGES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop", "later")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", UNKNOWN)
def test_a_hook_that_nobody_knows(name: str, stage: str) -> None:
    """below: it goes, at each stage, and the share starts. on-top, where it is in no spec that we edit: refused, unless it has run before
    our hook or runs when the container is gone."""
    entry = UNKNOWN[name]
    cdi = read("1.20.1-branch")
    found = narrowed(applied(cdi, "0", hooks={stage: [entry]}), grant())
    assert entry not in found.spec["hooks"].get(stage, []) and "update-ldcache" in verbs(found.spec)
    if nvidia_edits.LIMITS not in entry["args"]:  # its name is enough
        assert len(found.unknown) == 1 and len(found.unknown[0]) < 120
    words: dict[str, str | None] = dict.fromkeys(MEMORY_WORDS)
    before = {"createRuntime": [OURS]}
    if stage == "createRuntime":
        nvidia_edits.check_hooks({"hooks": {stage: [entry, OURS]}}, OWN, words)
        before = {}
    hooks = {**before, stage: [OURS, entry] if stage == "createRuntime" else [entry]}
    if stage in ("prestart", "poststop"):
        nvidia_edits.check_hooks({"hooks": hooks}, OWN, words)
    else:
        with pytest.raises(ApplyError) as e:
            nvidia_edits.check_hooks({"hooks": hooks}, OWN, words)
        assert [p.code for p in e.value.problems] == ["GH-409"] and len(str(e.value)) < 300


def test_the_legacy_hook_is_known_at_its_stage_only() -> None:
    """There our hook covers what it mounts. Later it would mount over the shims."""
    entry = call("nvidia-container-runtime-hook", "prestart", path="/usr/bin/nvidia-container-runtime-hook")
    for stage in STAGES:
        early = stage in nvidia_edits.BEFORE
        found = narrowed(applied(read("1.19.1"), hooks={stage: [entry]}), grant())
        assert found.late == early and bool(found.unknown) != early
        assert (entry in found.spec["hooks"].get(stage, [])) == early


@pytest.mark.parametrize(
    "link",
    [
        "x::/a/libcuda.so",
        "libcuda.so.1::/a/x",
        "x::/a/libcuda.so,y::/b/c",
        "y::/b/c,libnvidia-ml.so.1::/a/x",
        "../x/libcuda.so.615::/a/x",
        "libcuda.so.1",
    ],
)
def test_links_to_our_libraries_go(link: str) -> None:
    for words in (["--link", link], [f"--link={link}"], ["-link", link]):
        entry = call("nvidia-cdi-hook", "create-symlinks", "--link", "a::/b/a", *words)
        found = narrowed(applied(read("1.19.1"), hooks={"createContainer": [entry]}), grant())
        assert found.spec["hooks"]["createContainer"][0]["args"] == [
            "nvidia-cdi-hook",
            "create-symlinks",
            "--link",
            "a::/b/a",
        ]


def test_messages_are_short() -> None:
    long = call("nvidia-cdi-hook", nvidia_edits.LIMITS, "--gpu-id", "G" * 999)
    for entry, env in ((long, [f"{MEMORY_WORDS[0]}={'9' * 999}"]), (call("nvidia-cdi-hook", "m" * 999), [])):
        with pytest.raises(ApplyError) as e:
            nvidia_edits.check_hooks(
                {"process": {"env": env}, "hooks": {"createContainer": [entry]}}, OWN, dict.fromkeys(MEMORY_WORDS)
            )
        assert len(str(e.value)) < 300


def test_the_page_lists_every_hook() -> None:
    page = (REPO / "docs/reference/nvidia-toolkit.md").read_text()
    hooks = (
        *nvidia_edits.HARMLESS,
        *nvidia_edits.COMPAT,
        nvidia_edits.LINKS,
        nvidia_edits.LIMITS,
        *nvidia_hooks.FAMILY,
    )
    assert [name for name in (*hooks, *nvidia_edits.MORE_ENV, *nvidia_edits.NEVER_ENV) if f"`{name}`" not in page] == []


def test_other_peoples_hooks_stay() -> None:
    entry = call("netavark", "nvidia", path="/usr/bin/netavark", env=["LD_PRELOAD=/x.so"])
    for stage in STAGES:
        spec = applied(read("1.20.0"), hooks={stage: [entry]})
        assert narrowed(spec, grant()).spec["hooks"][stage][0] == entry
        nvidia_edits.check_hooks(spec, OWN, {})
