#!/usr/bin/python3
"""Acts as NVIDIA's container toolkit does, on simulated GPUs: its runtime, its legacy hook, its CDI hook.

By the name it is called by. conf.json beside it: {"mode": "cdi" | "legacy", "lower": the low-level runtime, "root":
driver root, "folder": of the libraries in it, "version", "gpus": {uuid: minor}, "more": other libraries, "new": [stage, place] of
a hook of a later release, which mounts libcuda once more}. As the real
one it obeys NVIDIA_VISIBLE_DEVICES of config.json alone, mounts every library of the driver's whatever the capabilities
say, makes links by force, and its legacy hook mounts into the made container, following the image's links inside it.
"""

import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(sys.argv[0]))
with open(HERE + "/conf.json") as f:
    CONF = json.load(f)


def environment(spec):
    return dict(entry.split("=", 1) for entry in spec["process"]["env"])


def visible(spec):
    """UUIDs, [] for driver files without a GPU, None for no GPU container."""
    said = environment(spec).get("NVIDIA_VISIBLE_DEVICES", "")
    if not said or "void" in said.split(","):
        return None
    uuids = list(CONF["gpus"])
    if said in ("all", "none"):
        return uuids if said == "all" else []
    return [uuids[int(word)] if word.isdigit() else word for word in said.split(",")]


def libraries():
    folder = CONF["root"] + CONF["folder"]
    names = [f"{name}.{CONF['version']}" for name in ("libcuda.so", "libnvidia-ml.so", *CONF["more"])]
    return [(f"{folder}/{name}", f"{CONF['folder']}/{name}") for name in names]


def entry(*words):
    return {"path": f"{HERE}/{words[0]}", "args": list(words), "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]}


def runtime(args):
    """nvidia-container-runtime; the real one acts on create only, the tests' runc also runs in the foreground."""
    if "create" in args or "run" in args:
        bundle = args[args.index("--bundle") + 1]
        with open(bundle + "/config.json") as f:
            spec = json.load(f)
        edit(spec)
        with open(bundle + "/config.json", "w") as f:
            json.dump(spec, f)
    os.execv(CONF["lower"], [CONF["lower"], *args])


def edit(spec):
    hooks = spec.setdefault("hooks", {})
    hooks["prestart"] = [e for e in hooks.get("prestart") or () if "nvidia-container-runtime-hook" not in e["path"]]
    if CONF["mode"] == "legacy":
        hooks["prestart"].append(entry("nvidia-container-runtime-hook", "prestart"))
        return
    uuids = visible(spec)
    if uuids is None:
        return
    for source, destination in libraries():
        options = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
        spec["mounts"].append({"destination": destination, "type": "none", "source": source, "options": options})
    spec["mounts"].sort(key=lambda m: m["destination"].rstrip("/").count("/"))  # the CDI package sorts all, by depth
    minors = [CONF["gpus"][uuid] for uuid in uuids]
    nodes = [(f"/dev/nvidia{n}", 195, n) for n in minors] + [
        (f"/dev/dri/renderD{128 + n}", 226, 128 + n) for n in minors
    ]
    for path, major, minor in [*nodes, ("/dev/nvidiactl", 195, 255), ("/dev/nvidia-modeset", 195, 254)]:
        spec["linux"].setdefault("devices", []).append({"path": path, "type": "c", "major": major, "minor": minor})
        rule = {"allow": True, "type": "c", "major": major, "minor": minor, "access": "rwm"}
        spec["linux"]["resources"]["devices"].append(rule)
    env = [entry for entry in spec["process"]["env"] if not entry.startswith("NVIDIA_VISIBLE_DEVICES=")]
    spec["process"]["env"] = [*env, "NVIDIA_CTK_LIBCUDA_DIR=" + CONF["folder"], "NVIDIA_VISIBLE_DEVICES=void"]
    hook = "nvidia-cdi-hook"
    limits = [
        entry(hook, "apply-cuda-memory-limits", "--driver-root", CONF["root"], "--gpu-id", uuid) for uuid in uuids
    ]
    hooks.setdefault("createRuntime", []).extend(limits)
    links = ["--link", f"libcuda.so.1::{CONF['folder']}/libcuda.so", "--link", "libcuda.so.1::/opt/links/libcuda.so"]
    links += ["--link", f"libnvidia-allocator.so.1::{CONF['folder']}/gbm/nvidia-drm_gbm.so"]
    hooks.setdefault("createContainer", []).extend(
        [
            entry(hook, "create-symlinks", *links),
            entry(hook, "enable-cuda-compat", "--host-driver-version=" + CONF["version"]),
            entry(hook, "update-ldcache", "--folder", CONF["folder"]),
            entry(hook, "disable-device-node-modification"),
        ]
    )
    if "new" in CONF:
        stage, place = CONF["new"]
        entries = hooks.setdefault(stage, [])
        entries.insert(place if place >= 0 else len(entries), entry(hook, "mount-all"))


def cdi_hook(args):
    """createContainer: in the container's mount namespace, the host's root still /. The one of createRuntime is on the host."""
    state = json.load(sys.stdin)
    if args[0] == "apply-cuda-memory-limits":
        return memory_limits(state, args[4::2])
    if args[0] == "mount-all":
        return mount_all(state)
    with open(state["bundle"] + "/config.json") as f:
        rootfs = json.load(f)["root"]["path"]
    if args[0] == "create-symlinks":
        for pair in args[2::2]:
            target, _, link = pair.partition("::")
            path = rootfs + link
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if os.path.islink(path) and os.readlink(path) == target:
                continue
            if os.path.lexists(path):
                os.remove(path)
            os.symlink(target, path)
    elif args[0] == "update-ldcache":
        update_ldcache(rootfs)
    elif args[0] == "enable-cuda-compat":
        with open(rootfs + "/etc/compat-was-enabled", "w") as f:
            f.write("x")


def memory_limits(state, uuids):
    """createRuntime: takes both limits from the bundle's config.json, the names with an S first; without one of them, it does
    nothing. `asked` beside it has what it found, and the limits in MiB that a GPU had before.

    conf.json may have "nvml", a library and the environment that it needs, and "repo", where oci_hook is.
    """
    with open(state["bundle"] + "/config.json") as f:
        spec = json.load(f)
    env = environment(spec)
    words = [env.get(f"NVIDIA_GPU_MEMORY_{w}S", env.get(f"NVIDIA_GPU_MEMORY_{w}")) for w in ("REQUEST", "LIMIT")]
    nvml, before = None, []
    if "nvml" in CONF:
        sys.path.insert(0, CONF["repo"])
        from oci_hook.boundary.nvml_limits import NvmlLimits
        from oci_hook.core.boundary import Limit

        with open(f"/proc/{state['pid']}/cgroup") as f:
            cgroup = "/sys/fs/cgroup" + next(line[3:].strip() for line in f if line.startswith("0::"))
        nvml = NvmlLimits(*CONF["nvml"])
        before = [nvml.get(uuid, cgroup).hard >> 20 for uuid in uuids]
    with open(HERE + "/asked", "a") as f:
        print(*words, *before, file=f)
    if None in words:
        return
    if nvml is None:
        sys.exit("setting GPU memory limits is only supported in cgroup v2")
    if spec["linux"].get("cgroupsPath", "").count(":") != 2:
        sys.exit("expected cgroupsPath to be of format slice:prefix:name")
    for uuid in uuids:
        nvml.set(Limit(uuid, int(words[0]) << 20, int(words[1]) << 20), cgroup)


def mount_all(state):
    """The driver's libcuda at its place in the container, whatever is there."""
    with open(state["bundle"] + "/config.json") as f:
        rootfs = json.load(f)["root"]["path"]
    [(source, destination), *_] = libraries()
    script = f"touch {rootfs}{destination}; mount --bind {source} {rootfs}{destination}"
    subprocess.run(["nsenter", "-t", str(state["pid"]), "-m", "sh", "-c", script], check=True)
    with open(HERE + "/mounted", "a") as f:
        f.write("x")


def update_ldcache(rootfs):
    os.makedirs(rootfs + "/etc/ld.so.conf.d", exist_ok=True)
    with open(rootfs + "/etc/ld.so.conf.d/00-nvcr-1.conf", "w") as f:
        f.write(CONF["folder"] + "\n")
    with open(rootfs + "/etc/ld.so.conf", "w") as f:
        f.write("include /etc/ld.so.conf.d/*.conf\n")
    subprocess.run(["ldconfig", "-r", rootfs], check=True, stderr=subprocess.DEVNULL)


def legacy_hook(args):
    """prestart: on the host; what nvidia-container-cli does to the container follows."""
    state = json.load(sys.stdin)
    with open(state["bundle"] + "/config.json") as f:
        spec = json.load(f)
    uuids = visible(spec)
    if uuids is None:
        return
    script = "set -e\n"
    rootfs = spec["root"]["path"]
    for source, destination in libraries():
        if environment(spec)["NVIDIA_DRIVER_CAPABILITIES"] != "all" and os.path.basename(source).startswith("libGLX"):
            continue
        target = inside(rootfs, destination)
        script += f"mkdir -p $(dirname {target}); touch {target}; mount --bind {source} {target}\n"
        script += f"mount -o remount,bind,ro,nosuid,nodev {target}\n"
    for uuid in uuids:
        n = CONF["gpus"][uuid]
        script += f"[ -e {rootfs}/dev/nvidia{n} ] || mknod -m 666 {rootfs}/dev/nvidia{n} c 195 {n}\n"
        allow(state["pid"], f"c 195:{n} rw")
    allow(state["pid"], "c 195:255 rw")
    script += f"ln -sfn libcuda.so.1 {rootfs}{CONF['folder']}/libcuda.so\n"
    subprocess.run(["nsenter", "-t", str(state["pid"]), "-m", "sh", "-c", script], check=True)
    program = [sys.executable, os.path.abspath(sys.argv[0]), "ldcache", rootfs]
    subprocess.run(["nsenter", "-t", str(state["pid"]), "-m", *program], check=True)


def inside(rootfs, path):
    """Where a path leads, its links followed below the rootfs."""
    for _ in range(8):
        if not os.path.islink(rootfs + path):
            break
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(rootfs + path)))
    return rootfs + path


def allow(pid, rule):
    with open(f"/proc/{pid}/cgroup") as f:
        group = next(line.strip().split(":", 2)[2] for line in f if "devices" in line.split(":")[1].split(","))
    with open(f"/sys/fs/cgroup/devices{group}/devices.allow", "w") as f:
        f.write(rule)


def main():
    name = os.path.basename(sys.argv[0])
    if sys.argv[1:2] == ["ldcache"]:
        update_ldcache(sys.argv[2])
    elif name == "nvidia-container-runtime":
        runtime(sys.argv[1:])
    elif name == "nvidia-cdi-hook":
        cdi_hook(sys.argv[1:])
    else:
        legacy_hook(sys.argv[1:])


main()
