"""`gpu-hook explain`: whole answers, from options and from a bundle, refusals, and nothing changed."""

import json
from pathlib import Path
from typing import Any

import pytest

from oci_hook.core.decision import DecidedShare
from oci_hook.core.grant import Share
from oci_hook.discovery.save import save_inventory
from oci_hook.install import settings_edit
from tests.cli.box import Install
from tests.decisions import decided, pod, write_keys

pytestmark = pytest.mark.root  # mount sources must be root's


def asking(*annotations: str) -> list[str]:
    return ["explain", *(word for a in annotations for word in ("--annotation", a))]


PLAN = """\
plan
  bind PREFIX/lib/private/container -> /run/gpu-hook (ro,nosuid,nodev,noexec)
  bind PREFIX/driver/libcuda.so.1.2 -> /run/gpu-hook/driver/cuda (ro,nosuid,nodev)
  bind PREFIX/driver/libnvidia-ml.so.1.2 -> /run/gpu-hook/driver/ml (ro,nosuid,nodev)
  bind PREFIX/state/pages/KEY/policy -> /run/gpu-hook/policy (ro,nosuid,nodev,noexec)
  tmpfs /run/gpu-hook/account (size 1048576, 16 inodes, mode 1777)
  bind PREFIX/state/share/GPU-0 -> /run/gpu-hook/share/0 (ro,nosuid,nodev,noexec)
  bind PREFIX/state/share/GPU-0/slot/00 -> /run/gpu-hook/slot/0 (rw,nosuid,nodev,noexec)
  bind PREFIX/driver/libx.so.1.2 -> /usr/lib64/libx.so.1.2 (ro,nosuid,nodev)
  bind PREFIX/driver/libx.so.1.2 -> /usr/lib64/libx.so.1 (ro,nosuid,nodev)
  bind PREFIX/driver/nvidia-smi -> /usr/bin/nvidia-smi (ro,nosuid,nodev)
  node /dev/nvidia0 (c 195:0)
  node /dev/nvidiactl (c 195:255)
  allow c 195:0 rw
  allow c 195:255 rw
  bind PREFIX/state/sim/gpus/0 -> /dev/nvidia-sim/0 (rw,nosuid,nodev,noexec)
  env NVIDIA_VISIBLE_DEVICES={visible}
"""
LAST = """\
  bind PREFIX/lib/shim/libcuda.so.1 -> /usr/lib64/libcuda.so.1 (ro,nosuid,nodev)
  bind PREFIX/lib/shim/libcuda.so.1 -> /usr/lib64/libcuda.so (ro,nosuid,nodev)
  bind PREFIX/lib/shim/libcuda.so.1 -> /usr/lib64/libcuda.so.1.2 (ro,nosuid,nodev)
  bind PREFIX/lib/shim/libnvidia-ml.so.1 -> /usr/lib64/libnvidia-ml.so.1 (ro,nosuid,nodev)
  bind PREFIX/lib/shim/libnvidia-ml.so.1 -> /usr/lib64/libnvidia-ml.so (ro,nosuid,nodev)
  bind PREFIX/lib/shim/libnvidia-ml.so.1 -> /usr/lib64/libnvidia-ml.so.1.2 (ro,nosuid,nodev)
"""


NOT_ASKED = "the driver was not asked when the GPUs were listed"
SHIM_ALONE = f"memory limit held by the shim alone: {NOT_ASKED}\n"


def without_env(text: str) -> str:
    """The answer with only the first variable of the plan's environment; the plan's own tests check the others."""
    kept = [line for line in text.splitlines(True) if not line.startswith("  env ") or "VISIBLE_DEVICES" in line]
    return "".join(kept)


def test_t9k_share_of_a_named_gpu(install: Install) -> None:
    answer = install.text(*asking("NVIDIA_VISIBLE_DEVICES=0", "T9K_GPU_PERCENT=25"))
    assert without_env(answer) == (
        "container (the engine gives no name)\n"
        "request\n"
        "  GPUs         1: 0\n"
        "  memory       25% of the GPU\n"
        "  compute      no guarantee\n"
        "  policy       best-effort\n"
        "  class        default\n"
        "  exclusive    no\n"
        "  placement    binpack (the node's setting)\n"
        "  capabilities compute, utility\n"
        "GPUs (simulated)\n"
        "  0  GPU-0  chosen (asked for by name): 6Gi of 24Gi\n"
        "  1  GPU-1  not asked for\n" + SHIM_ALONE + PLAN.format(visible="0") + LAST
    )
    assert "  env T9K_GPU_MEMORY=6144\n" in answer


def test_compute_and_its_ceiling(install: Install) -> None:
    install.grant("other", Share("GPU-0", 20480))
    install.grant("full", Share("GPU-1", 1024, 90))
    answer = install.text(
        *asking("gpu-hook.io/memory=1Gi", "gpu-hook.io/compute=30", "gpu-hook.io/compute-limit=60"), "--container", "a"
    )
    assert without_env(answer) == (
        "container a\n"
        "request\n"
        "  GPUs         1: any\n"
        "  memory       1Gi\n"
        "  compute      30%, at most 60%\n"
        "  policy       burst-share\n"
        "  class        default\n"
        "  exclusive    no\n"
        "  placement    binpack (the node's setting)\n"
        "  capabilities compute, utility\n"
        "GPUs (simulated)\n"
        "  0  GPU-0  chosen (binpack): 1Gi of 24Gi, compute 30% and up to 60%\n"
        "  1  GPU-1  GPU 1 GPU-1 has 10 of 100 % compute free, 30 % asked\n"
        + SHIM_ALONE
        + PLAN.format(visible="GPU-0")
        + LAST
    )


def test_the_compute_of_class_offline_is_booked_apart(install: Install) -> None:
    install.grant("web", Share("GPU-0", 1024, 90), Share("GPU-1", 1024, 90))
    wish = asking("gpu-hook.io/memory=1Gi", "gpu-hook.io/compute=60", "gpu-hook.io/class=offline")
    said = install.text(*wish)
    assert "  compute      60% among offline containers, of what is idle\n" in said
    assert "chosen (binpack): 1Gi of 24Gi, compute 60%" in said
    for name in ("one", "two"):
        install.grant(name, Share("GPU-0", 1024, 30), Share("GPU-1", 1024, 30), priority_class="offline")
    said = install.text(*wish, status=1)
    assert "GPU 0 GPU-0 has 40 of 100 % offline compute free, 60 % asked" in said
    assert "ask for at most 40 % offline compute" in install.text("why", *wish[1:])


def test_the_compute_of_class_online_is_a_booking(install: Install) -> None:
    wish = asking("gpu-hook.io/compute=30", "gpu-hook.io/policy=fs", "gpu-hook.io/class=online")
    booked = (
        "  class        online: its compute is booked, and it competes with others of class online for all of the GPU\n"
    )
    assert booked in install.text(*wish)
    assert install.data(*wish)["gpus"][0]["share"]["compute_limit"] == 100
    assert "  class        online\n" in install.text(*asking("gpu-hook.io/memory=1Gi", "gpu-hook.io/class=online"))
    settings_edit.change(str(install.prefix), online_compute="share")
    assert "  class        online\n" in install.text(*wish)
    assert install.data(*wish)["gpus"][0]["share"]["compute_limit"] == 30


def test_whole_gpus_and_driver_files_alone(install: Install) -> None:
    whole = install.text(*asking("gpu-hook.io/gpus=all"))
    assert "  GPUs         every GPU of the node\n  memory       all of it\n  compute      all of it\n" in whole
    assert "  0  GPU-0  chosen (asked for by name): the whole GPU\n" in whole
    none = install.text(*asking("gpu-hook.io/memory=1Gi"), "--env", "NVIDIA_VISIBLE_DEVICES=none")
    assert without_env(none).startswith(
        "container (the engine gives no name)\n"
        "request\n"
        "  GPUs         none: driver files only\n"
        "  capabilities compute, utility\n"
        "  narrowed to  no GPU\n"
        "GPUs (simulated)\n"
        "  0  GPU-0  no GPU is asked for\n"
    )
    assert "node " not in none


def test_nothing_asked(install: Install) -> None:
    assert install.text("explain") == "container (the engine gives no name)\nrequests nothing\n"
    from_image = install.run("explain", "--env", "NVIDIA_VISIBLE_DEVICES=all")
    assert from_image.stdout == "container (the engine gives no name)\nrequests nothing\n"
    assert "env NVIDIA_VISIBLE_DEVICES='all' asks for nothing, since an image can set it" in from_image.stderr
    forgotten = install.run(*asking("memory=4Gi"))
    assert forgotten.stdout.endswith("requests nothing\n")
    assert (
        forgotten.stderr == "warning: GH-108: 'memory' is no key of gpu-hook without the prefix gpu-hook.io/; add it\n"
    )
    nothing = {"request": None, "gpus": [], "plan": [], "chosen_by": "", "boundary": None, "boundary_why": ""}
    assert install.data("explain") == {"name": "", "annotated_containers": {}, **nothing}


MISSES = [
    ("-a", "gpuhook.io/memory=4Gi"),
    ("-a", "gpu-hook/memory=4Gi"),
    ("-a", "nvidia.com/gpu.shared=1"),
    ("-a", "gpu-hook.io/memory.trianer=4Gi", "--container", "trainer"),
    ("-a", "gpu-hook.io/policy=fs"),
    ("-a", "tke.cloud.tencent.com/qgpu-core=30"),
    ("-l", "gpu-hook.io/memory=4Gi"),
    ("-v", "/dev/null:/run/gpuhook/request/memory=4Gi"),
]


@pytest.mark.parametrize("words", MISSES, ids=lambda words: words[1])
def test_near_misses(install: Install, words: tuple[str, ...]) -> None:
    """As the runtime says it: refused, or with `near_misses: warn` a warning."""
    refused = install.run("explain", *words)
    assert (refused.exit_code, refused.stdout) == (1, "") and refused.stderr.startswith("GH-108: ")
    settings_edit.change(str(install.prefix), near_misses="warn")
    warned = install.run("explain", *words)
    assert warned.exit_code == 0 and warned.stdout.endswith("requests nothing\n")
    assert "warning: " + refused.stderr in warned.stderr


def test_a_request_on_a_node_that_lends_nothing(install: Install) -> None:
    """As `set --memory-request` says it."""
    asked = asking("gpu-hook.io/memory=4Gi", "gpu-hook.io/memory-request=1Gi")
    head, tail = "warning: GH-103: memory-request says what of the memory is booked, and ", "; all of it is booked\n"
    old = "driver 1.2 cannot move memory, so none is lent; 570 and newer can"
    assert install.run(*asked).stderr == f"{head}{old}{tail}"
    assert install.run(*asking("gpu-hook.io/memory=4Gi", "gpu-hook.io/memory-request=4Gi")).stderr == ""
    assert install.run(*asking("gpu-hook.io/memory=4Gi")).stderr == ""
    save_inventory(install.settings, install.inventory.replace(driver_version="570.1"))
    off = "this node lends nothing; `gpu-hook settings set oversubscribe=2.0` has it lend"
    assert install.run(*asked).stderr == f"{head}{off}{tail}"
    settings_edit.change(str(install.prefix), oversubscribe="2.0")
    assert install.run(*asked).stderr == ""


def test_a_share_that_a_context_nearly_fills(install: Install) -> None:
    gpus = tuple(gpu.replace(context_mib=300) for gpu in install.inventory.gpus)
    save_inventory(install.settings, install.inventory.replace(gpus=gpus))
    assert install.run(*asking("gpu-hook.io/memory=600")).stderr == ""
    assert install.run(*asking("gpu-hook.io/memory=599")).stderr == (
        "warning: GH-408: GPU 0: one program's context takes 300 of these 599 MiB; 299 MiB are left for its data, and no"
        " second program fits\n"
    )
    assert "; 0 MiB are left" in install.run(*asking("gpu-hook.io/memory=300")).stderr
    assert "takes 300 MiB for a program's context alone, 299 MiB asked" in install.text(
        *asking("gpu-hook.io/memory=299"), status=1
    )
    assert install.run(*asking("gpu-hook.io/gpus=1")).stderr == ""


def test_json(install: Install) -> None:
    answer = install.data(*asking("gpu-hook.io/memory=2Gi"))
    plan = answer.pop("plan")
    assert plan[0] == "bind PREFIX/lib/private/container -> /run/gpu-hook (ro,nosuid,nodev,noexec)"
    share = {"uuid": "GPU-0", "memory_mib": 2048, "compute": 0, "compute_limit": 100, "whole": False, "slot": 1}
    share["request_mib"] = 0
    gpu = {"name": "Simulated GPU", "memory_mib": 24576, "simulated": True}
    assert answer == {
        "name": "",
        "annotated_containers": {},
        "boundary": "shim",
        "boundary_why": NOT_ASKED,
        "chosen_by": "",
        "request": {
            "gpus": [{"device": None, "memory": ["mib", 2048], "compute": None, "memory_request": None}],
            "every_gpu": False,
            "policy": "best-effort",
            "compute_limit": None,
            "class": "default",
            "exclusive": False,
            "placement": None,
            "capabilities": ["compute", "utility"],
            "narrow_to": None,
            "preempt_tolerance_us": None,
            "imex_channels": [],
            "visible": "uuid",
            "same_percent": None,
            "required": [],
            "boundary": "auto",
            "apart_from": "",
        },
        "gpus": [
            {"index": 0, "address": "0", "uuid": "GPU-0", **gpu, "reason": "chosen (binpack)", "share": share},
            {
                "index": 1,
                "address": "1",
                "uuid": "GPU-1",
                **gpu,
                "reason": "has room, another GPU comes first (binpack)",
                "share": None,
            },
        ],
    }


def test_refused_requests_say_all_problems_and_exit_1(install: Install) -> None:
    bad = asking("gpu-hook.io/memory=4GB", "gpu-hook.io/compute=0")
    assert install.text(*bad, status=1) == (
        "GH-101: gpu-hook.io/memory='4GB' is not a size; did you mean 4Gi?\n"
        "GH-101: gpu-hook.io/compute='0' is not within 1 to 100; write 30 or 30%\n"
    )
    assert install.data(*bad, status=1) == {
        "errors": [
            {
                "code": "GH-101",
                "message": "gpu-hook.io/memory='4GB' is not a size; did you mean 4Gi?",
            },
            {"code": "GH-101", "message": "gpu-hook.io/compute='0' is not within 1 to 100; write 30 or 30%"},
        ]
    }
    assert install.run(*bad).stdout == ""


@pytest.mark.parametrize(
    ("annotations", "code"),
    [
        (["gpu-hook.io/memory=25Gi"], "GH-201"),
        (["gpu-hook.io/devices=7"], "GH-202"),
        (["gpu-hook.io/gpus=3"], "GH-203"),
    ],
)
def test_no_room(install: Install, annotations: list[str], code: str) -> None:
    before = install.ledger()
    assert [e["code"] for e in install.data(*asking(*annotations), status=1)["errors"]] == [code]
    assert install.ledger() == before


def test_a_node_that_is_not_fit(install: Install) -> None:
    ask = asking("gpu-hook.io/memory=1Gi")
    (install.prefix / "lib/shim/libcuda.so.1").unlink()
    assert install.text(*ask, status=1).startswith("GH-305: PREFIX/lib/shim/libcuda.so.1: No such file")
    (install.state / "inventory.json").unlink()
    assert install.text(*ask, status=1).startswith("GH-301: ")
    (install.prefix / "etc/settings.yaml").unlink()
    assert install.text(*ask, status=1).startswith("GH-501: ")


def test_changed_settings_are_in_effect(install: Install) -> None:
    install.say((install.prefix / "etc/settings.yaml").read_text().replace("memory_min: 1 ", "memory_min: 3Gi "))
    assert "3Gi" in install.text(*asking("gpu-hook.io/memory=1Gi"))


def test_options_must_be_pairs(install: Install) -> None:
    assert "--annotation memory: write it as K=V" in install.text(*asking("memory"), status=2)


# Containers of a pod


def test_names_that_suffixes_speak_of(install: Install) -> None:
    install.grant("x", Share("GPU-1", 1), who={"container": "seen"})
    keys = asking("gpu-hook.io/memory.a=1Gi", "gpu-hook.io/memory.typo=1Gi", "gpu-hook.io/gpus.seen=1")
    answer = install.run(*keys, "--container", "a")
    assert answer.stdout.startswith("container a\nannotations name a, typo, seen\nrequest\n")
    assert answer.stderr == (
        "warning: GH-102: gpu-hook.io/memory.typo is for container 'typo', which was not seen in this pod;"
        " check the name\n"
    )
    assert install.data(*keys, "--container", "a")["annotated_containers"] == {
        "a": ["gpu-hook.io/memory.a"],
        "typo": ["gpu-hook.io/memory.typo"],
        "seen": ["gpu-hook.io/gpus.seen"],
    }
    other = install.run(*keys, "--container", "b")
    assert other.stdout == "container b\nannotations name a, typo, seen\nrequests nothing\n"


# A bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle with a Debian image, asking for 1 GiB as container `web` of pod `shop`."""
    folder = tmp_path / "bundle"
    for name in ("etc", "run", "dev", "usr/lib", "usr/bin"):
        (folder / "rootfs" / name).mkdir(parents=True)
    (folder / "rootfs/etc/debian_version").write_text("12\n")
    save(
        folder,
        {
            "ociVersion": "1.0.2",
            "process": {"env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=1"], "args": ["sh"]},
            "root": {"path": "rootfs"},
            "annotations": {
                "io.kubernetes.cri.container-type": "container",
                "io.kubernetes.cri.container-name": "web",
                "io.kubernetes.cri.sandbox-name": "shop",
                "io.kubernetes.cri.sandbox-namespace": "ns",
                "gpu-hook.io/memory.web": "1Gi",
            },
        },
    )
    return folder


def save(folder: Path, spec: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(spec))


def edit(folder: Path, **parts: Any) -> None:
    spec = json.loads((folder / "config.json").read_text())
    for name, part in parts.items():
        spec[name] = {**spec.get(name, {}), **part}
    save(folder, spec)


def test_a_bundle_is_looked_at_and_left_alone(install: Install, bundle: Path) -> None:
    before = install.ledger(), (bundle / "config.json").read_bytes(), sorted((bundle / "rootfs").rglob("*"))
    answer = install.text("explain", "--spec", str(bundle / "config.json"))
    assert answer.startswith("container web\nannotations name web\nrequest\n  GPUs         1: any\n")
    assert "  narrowed to  1\n" in answer
    assert "  0  GPU-0  not asked for\n  1  GPU-1  chosen (binpack): 1Gi of 24Gi\n" in answer
    assert "-linux-gnu/libcuda.so.1 (ro,nosuid,nodev)\n" in answer
    assert before == (install.ledger(), (bundle / "config.json").read_bytes(), sorted((bundle / "rootfs").rglob("*")))


def test_options_add_to_the_spec(install: Install, bundle: Path) -> None:
    spec = ["explain", "--spec", str(bundle / "config.json")]
    more = [*spec, "-a", "gpu-hook.io/memory.web=2Gi", "-e", "NVIDIA_VISIBLE_DEVICES=0"]
    assert "  0  GPU-0  chosen (binpack): 2Gi of 24Gi\n" in install.text(*more)


def test_the_sandbox_gets_nothing(install: Install, bundle: Path) -> None:
    edit(bundle, annotations={"io.kubernetes.cri.container-type": "sandbox", "gpu-hook.io/memory": "1Gi"})
    assert install.data("explain", "--spec", str(bundle / "config.json"))["request"] is None


def test_an_edited_bundle_is_explained_as_it_was(install: Install, bundle: Path) -> None:
    from oci_hook.apply import to_spec
    from oci_hook.core.plan import ImageFacts, make_plan

    first = install.text("explain", "--spec", str(bundle / "config.json"))
    grant = install.grant("c", Share("GPU-1", 1024), who={"container": "web", "pod": "shop", "namespace": "ns"})
    plan = make_plan(grant, install.inventory, ImageFacts("/usr/lib64"), str(install.prefix), str(install.state))
    spec = json.loads((bundle / "config.json").read_text())
    save(bundle, to_spec.apply(spec, plan, grant))
    with_grant = install.text("explain", "--spec", str(bundle / "config.json"))
    assert with_grant == first


def test_a_bundle_that_cdi_edited_asks_as_before(install: Install, bundle: Path) -> None:
    settings_edit.change(str(install.prefix), mode="below")
    spec = ["explain", "--spec", str(bundle / "config.json")]
    edit(bundle, process={"env": ["PATH=/bin"]})
    first = install.data(*spec)["request"]
    env = ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=void"]
    hook = {"path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "chmod"]}
    edit(bundle, process={"env": env}, hooks={"createContainer": [hook]})
    assert first and install.data(*spec)["request"] == first


def test_what_the_runtime_would_refuse(install: Install, bundle: Path) -> None:
    spec = str(bundle / "config.json")
    edit(bundle, linux={"resources": {"devices": [{"allow": True, "access": "rwm"}]}})
    assert install.text("explain", "--spec", spec, status=1).startswith("GH-403: ")
    edit(bundle, linux={"resources": {}})
    (bundle / "rootfs/run/gpu-hook/mine").mkdir(parents=True)
    assert install.text("explain", "--spec", spec, status=1).startswith("GH-402: /run/gpu-hook in the image exists")
    (bundle / "config.json").write_text("{")
    assert install.text("explain", "--spec", spec, status=1).startswith("GH-401: ")
    assert install.text("explain", "--spec", "/no/config.json", status=1).startswith("GH-401: ")


def test_each_gpu_by_itself_and_mounts(install: Install) -> None:
    request = 'gpu-hook.io/request={"a": [{"memory": "4Gi", "compute": 60}, {"device": 1}], "stranger": [{}]}'
    answer = install.text(*asking(request), "--container", "a")
    assert answer.startswith("warning: GH-102: gpu-hook.io/request is for container 'stranger'")
    assert "  GPUs         2: any, 1\n  memory       4Gi, all of it\n  compute      60%, all of it\n" in answer
    mount = ("--volume", "/dev/null:/run/gpu-hook/request/memory=4Gi:ro")
    assert "  memory       4Gi\n" in install.text("explain", *mount)
    assert install.text("explain", "-v", "/etc:/run/gpu-hook/request/memory=4Gi", status=1).startswith(
        "GH-102: 'mount "
    )
    assert "write it as /dev/null:" in install.text("explain", "-v", "/dev/null", status=2)


def test_mounts_of_a_bundle(install: Install, tmp_path: Path) -> None:
    (tmp_path / "bundle/rootfs").mkdir(parents=True)
    mount = {"destination": "/run/gpu-hook/request/memory=4Gi", "type": "bind", "source": "/dev/null"}
    spec = tmp_path / "bundle/config.json"
    spec.write_text(json.dumps({"mounts": [mount]}))
    assert "  memory       4Gi\n" in install.text("explain", "--spec", str(spec))


def test_a_node_of_a_cluster(install: Install) -> None:
    """What the controller decided, by its code where it would be refused; and who chooses the GPUs."""
    share = {"a": [DecidedShare("GPU-1", 4096)]}
    settings_edit.change(str(install.prefix), cluster="required")
    write_keys(install.prefix)

    def asks(alloc: str | None, memory: str = "4Gi") -> list[str]:
        return asking(*(f"{key}={value}" for key, value in pod(alloc, {"gpu-hook.io/memory.a": memory}).items()))

    answer = install.text(*asks(decided(share)))
    assert "chosen by the cluster's controller\n" in answer and "1  GPU-1  chosen (asked for by name): 4Gi" in answer
    for command, code in ((asks(None), "GH-601"), (asks("{"), "GH-602"), (asks(decided(share), "5Gi"), "GH-604")):
        result = install.run(*command)
        assert result.exit_code == 1 and code in result.output
    settings_edit.change(str(install.prefix), cluster="local")
    assert "chosen by this node\n" in install.text(*asks(None))


def test_a_name_from_a_tenant_cannot_speak_to_the_terminal(install: Install) -> None:
    words = ["-a", "io.kubernetes.cri.container-name=a\x1b]0;pwn\x07b", "-a", "gpu-hook.io/memory=1Gi"]
    assert "\x1b" not in install.run("explain", *words).stdout
