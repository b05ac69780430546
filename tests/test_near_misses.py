"""Containers that seem to ask for a GPU in words that are not understood, with the real runc: refused where the runtime
was chosen by name, else a warning and an event; and never anything for containers that ask for nothing."""

import json
import os
from pathlib import Path

import pytest

from testbed import REPO
from testbed.containers import Bundle, Runc
from testbed.installs import Install

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

P = "gpu-hook.io/"
NAMED = {"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.container-name": "trainer"}
MISSES = {
    "prefix": {"gpuhook.io/memory": "4Gi"},
    "prefix beside a request": {"gpuhook.io/compute": "30", P + "memory": "1Gi"},
    "another's word": {"nvidia.com/gpu.shared": "1"},
    "name": {**NAMED, P + "memory.trianer": "4Gi"},
    "only how": {P + "policy": "fs"},
    "another's only how": {"tencent.com/vcuda-core-limit": "50"},
    "no name to compare": {"hook.io/memory.a": "4Gi"},
    "a dialect that is off": {"tke.cloud.tencent.com/qgpu-memory": "5"},
}


def events(prefix: Install) -> list[dict[str, object]]:
    path = prefix.state / "events"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("name", MISSES)
def test_refused_where_the_runtime_was_chosen(prefix: Install, bundle: Bundle, runc: Runc, name: str) -> None:
    folder = bundle(MISSES[name])
    before = (folder / "config.json").read_bytes()
    done = runc.create(folder, prefix)
    assert done.returncode == 1 and "GH-108: " in done.stderr
    assert not (runc.root / runc.ids[-1]).exists() and (folder / "config.json").read_bytes() == before
    assert prefix.grants() == () and events(prefix)[-1]["codes"] == ["GH-108"]


@pytest.mark.parametrize("how", ["warn", "default", "hand-made default"])
@pytest.mark.parametrize("name", MISSES)
def test_a_warning_elsewhere(prefix: Install, bundle: Bundle, runc: Runc, tmp_path: Path, name: str, how: str) -> None:
    if how == "default":  # as `install --set-default` writes it down
        files = {"/etc/docker/daemon.json": {"before": None, "after": "", "notes": {"file": True, "default": None}}}
        (prefix.prefix / "etc/engines.json").write_text(json.dumps({"engines": {"docker": files}, "folders": []}))
    else:
        prefix.set(near_misses="warn")
    log = tmp_path / "log"
    done = runc.create(bundle(MISSES[name]), prefix, flags=["--log", str(log), "--log-format", "json"])
    assert done.returncode == 0, done.stderr
    warnings = [json.loads(line) for line in log.read_text().splitlines() if "GH-108" in line]
    assert [entry["level"] for entry in warnings] == ["warning"]
    unclear = [event for event in events(prefix) if event["event"] == "unclear"]
    assert [event["id"] for event in unclear] == [runc.ids[-1]]
    assert len(prefix.grants()) == ("request" in name)


def test_a_damaged_record_of_engines_counts_as_none(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    for text in ("", "{", "[]", '{"engines": 1}', '{"engines": {"docker": {"f": []}}}'):
        (prefix.prefix / "etc/engines.json").write_text(text)
        assert runc.create(bundle(MISSES["prefix"]), prefix).returncode == 1


def test_the_hook_only_warns(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    snippet = (REPO / "runtime-config/runc/config.json").read_text().replace("/opt/gpu-hook", str(prefix.prefix))
    hooks = {"prestart": json.loads(snippet)["hooks"]["prestart"]}
    done = runc.create(bundle(MISSES["prefix"], edit=lambda spec: spec.update(hooks=hooks)))
    assert done.returncode == 0, done.stderr
    assert [event["event"] for event in events(prefix)] == ["unclear"]
    prefix.set(near_misses="refuse")
    done = runc.create(bundle(MISSES["prefix"], edit=lambda spec: spec.update(hooks=hooks)))
    assert done.returncode == 1 and prefix.grants() == ()


@pytest.mark.parametrize(
    ("annotations", "env"),
    [
        ({}, []),
        ({"x": "gpu"}, ["NVIDIA_VISIBLE_DEVICES=all", "CUDA_VERSION=12.4"]),
        ({"amd.com/gpu": "1"}, []),
        ({P + "policy": "fs", P + "memory.trainer": "4Gi", **NAMED, "io.kubernetes.cri.container-name": "logs"}, []),
        ({"gpuhook.io/memory.trainer": "4Gi", **NAMED, "io.kubernetes.cri.container-name": "logs"}, []),
        ({"gpuhook.io/memory": "4Gi", "io.kubernetes.cri.container-type": "sandbox"}, []),
    ],
    ids=str,
)
def test_nothing_is_said_of_who_asks_for_nothing(
    prefix: Install, bundle: Bundle, runc: Runc, annotations: dict[str, str], env: list[str]
) -> None:
    prefix.set(near_misses="refuse")
    done = runc.create(bundle(annotations, env), prefix)
    assert (done.returncode, done.stderr) == (0, "") and events(prefix) == []


def test_a_variable_of_an_image_is_never_refused(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    prefix.set(near_misses="refuse")
    done = runc.create(bundle({}, ["GPU_HOOK_MEMORY=4Gi"]), prefix)
    assert done.returncode == 0 and "GH-108: env GPU_HOOK_MEMORY='4Gi' asks for nothing" in done.stderr


@pytest.mark.parametrize("variable", ["GPU_HOOK_MEMROY=1Gi", "GPUHOOK_MEMORY=1Gi", "GPU_HOOK_POLICY=fs"])
def test_our_misspelt_variable_where_the_environment_is_trusted(
    prefix: Install, bundle: Bundle, runc: Runc, variable: str
) -> None:
    prefix.set(trust_env="true")
    done = runc.create(bundle({}, [variable]), prefix)
    assert done.returncode == 1 and f"GH-108: env {variable.partition('=')[0]}=" in done.stderr
    assert prefix.grants() == () and events(prefix)[-1]["codes"] == ["GH-108"]


@pytest.mark.parametrize("variable", ["T9K_GPU_MEM=100", "NVIDIA_VISIBLE_DEVICE=0"])
def test_others_misspelt_variable_where_the_environment_is_trusted(
    prefix: Install, bundle: Bundle, runc: Runc, variable: str
) -> None:
    prefix.set(trust_env="true", near_misses="refuse")
    done = runc.create(bundle({}, [variable]), prefix)
    assert done.returncode == 0 and f"GH-108: env {variable.partition('=')[0]}=" in done.stderr
    assert [event["event"] for event in events(prefix)] == ["unclear"]


@pytest.mark.parametrize(
    "annotations",
    [
        {"NVIDIA_DRIVER_CAPABILITIES": "all"},
        {"NVIDIA_REQUIRE_CUDA": "cuda>=12.0"},
        {"tke.cloud.tencent.com/app-class": "online"},
        {**NAMED, "io.kubernetes.cri.container-name": "app-1", P + "memory.app": "1Gi"},
    ],
    ids=str,
)
def test_words_that_are_only_told_of(prefix: Install, bundle: Bundle, runc: Runc, annotations: dict[str, str]) -> None:
    prefix.set(near_misses="refuse")
    done = runc.create(bundle(annotations), prefix)
    assert done.returncode == 0 and "GH-108: " in done.stderr
    assert [event["event"] for event in events(prefix)] == ["unclear"]


def test_a_refusal_has_the_pods_name(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    pod = {"io.kubernetes.cri.sandbox-namespace": "ml", "io.kubernetes.cri.sandbox-name": "train-0", **NAMED}
    assert runc.create(bundle({**pod, P + "memory": "4GB"}), prefix).returncode == 1
    assert (events(prefix)[-1]["codes"], events(prefix)[-1]["name"]) == (["GH-101"], "ml/train-0/trainer")


def test_create_without_an_id_is_said_as_runc_says_it(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    folder = bundle({P + "memory": "1Gi"})
    ours = runc("create", "--bundle", str(folder), program=prefix.program)
    theirs = runc("create", "--bundle", str(folder))
    assert ours.returncode == theirs.returncode != 0 and "GH-" not in ours.stderr + ours.stdout
    said = [done.stderr.splitlines()[-1].partition("create")[2] for done in (ours, theirs)]
    assert said[0] == said[1] and "requires exactly 1 argument" in said[0]
    assert prefix.grants() == ()


def test_labels_of_docker(prefix: Install, bundle: Bundle, runc: Runc, tmp_path: Path) -> None:
    """In the layout of docker's folders; tests/engines/test_docker.py has the real one."""
    id = runc.new_id()
    containers = tmp_path / "docker/containers" / id
    containers.mkdir(parents=True)
    (containers / "hostname").write_text("box\n")
    labels = {"maintainer": "x", P + "memory": "4Gi"}
    (containers / "config.v2.json").write_text(json.dumps({"Config": {"Labels": labels}}))
    mount = {"destination": "/etc/hostname", "type": "bind", "source": f"{containers}/hostname", "options": ["rbind"]}
    folder = bundle({}, edit=lambda spec: spec["mounts"].append(mount))
    moved = tmp_path / "moby" / id
    moved.parent.mkdir()
    folder.rename(moved)
    done = runc.create(moved, prefix, id=id)
    assert done.returncode == 1
    assert f"GH-108: {P}memory='4Gi' is a label, and labels ask for nothing; use --annotation" in done.stderr
    (containers / "config.v2.json").write_text("{")
    assert runc.create(moved, prefix, id=id).returncode == 0
