"""oci-gpu-hook precreate: the spec that it writes, the grant that waits for its container, and who may adopt it."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from oci_hook.apply.to_spec import HOOK_TIMEOUT
from oci_hook.core.request import parse
from oci_hook.ledger import resource_claims, store
from oci_hook.linux.proc import boot_id, process_life
from oci_hook.observe.event_log import Follower
from oci_hook.observe.stage import stage
from testbed.installs import MEMORY_MIB, UUIDS, Install
from tests.test_hook import hooked, nothing_is_booked

pytestmark = pytest.mark.root
ASK = {"gpu-hook.io/devices": "0", "gpu-hook.io/memory": "60%"}  # a GPU has room for one of these


@pytest.fixture
def install(prefix: Install) -> Install:
    for name in ("ledger", "pages"):
        (prefix.state / name).mkdir(mode=0o700)
    return prefix


def precreate(install: Install, spec: "dict[str, Any] | bytes", **more: Any) -> "subprocess.CompletedProcess[bytes]":
    data = spec if isinstance(spec, bytes) else json.dumps(spec).encode()
    command = [str(install.prefix / "bin/oci-gpu-hook"), "precreate"]
    return subprocess.run(command, input=data, capture_output=True, **more)


def config(folder: Path) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return spec


def filtered(install: Install, folder: Path) -> dict[str, Any]:
    """As podman does it: what the filter writes becomes the bundle's config.json."""
    done = precreate(install, config(folder))
    assert (done.returncode, done.stderr) == (0, b""), done
    (folder / "config.json").write_bytes(done.stdout)
    return config(folder)


def waiting(install: Install) -> str:
    [grant] = install.grants()
    assert grant.life.init is None and grant.life.creator is None
    assert 0 < grant.life.deadline - time.monotonic() <= 60
    return grant.key


def by_podman(install: Install, folder: Path, then: str) -> "subprocess.Popen[bytes]":
    """A process named podman that calls the stage, and then does this."""
    podman = folder / "podman"
    shutil.copy("/bin/sh", podman)
    (folder / "in").write_text(json.dumps(config(folder)))
    line = f"{install.prefix}/bin/oci-gpu-hook precreate < {folder}/in > {folder}/config.json; echo done; {then}"
    process = subprocess.Popen([podman, "-c", line], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"done\n"
    return process


@pytest.mark.parametrize("registered", [True, False])
def test_an_image_that_only_podman_sees_is_left_to_the_hook(install, bundle, runc, registered, tmp_path):
    """podman 5.8 mounts it in a mount namespace of its own where the container has a user namespace."""
    folder = bundle(ASK, edit=hooked(install, "createRuntime") if registered else lambda spec: None)
    spec = config(folder)
    root, spec["root"]["path"] = spec["root"]["path"], str(tmp_path / "mountpoint")
    (tmp_path / "mountpoint").mkdir()
    done = precreate(install, spec)
    assert (done.returncode, done.stderr) == (0, b"") and install.grants() == ()
    (folder / "config.json").write_bytes(done.stdout)
    mounted = f"mount --bind {root} {tmp_path}/mountpoint && exec runc --root {runc.root} create --bundle {folder} "
    id = runc.new_id()
    way = ["unshare", "--mount", "--propagation", "private", "sh", "-c", mounted + id]
    with open(tmp_path / "said", "w+") as said:  # the container would keep a pipe open
        done = subprocess.run(way, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    assert done.returncode == 0, (tmp_path / "said").read_text()
    (grant,) = install.grants()
    assert grant.who.id == id and f"{tmp_path}/mountpoint" not in Path("/proc/self/mountinfo").read_text()
    top = f"/proc/{runc.pid(id)}/root"
    assert Path(f"{top}/run/gpu-hook/policy").exists() and os.listdir(tmp_path / "mountpoint") == []


def test_a_podman_that_fails_leaves_no_grant(install, bundle):
    """As soon as it ends, whether it was killed or not; until then the container may come."""
    for end in ("wait", "kill"):
        process = by_podman(install, bundle(ASK), "read end")
        (grant,) = install.grants()
        assert grant.life.creator == process_life(process.pid) and stage(grant)[0] == "starting"
        assert 0 < stage(grant)[1] <= 60
        if end == "kill":
            process.kill()
        process.communicate(b"\n")
        assert install.grants() == ()
        with store.open_ledger(str(install.state)) as ledger:
            assert ledger.grants == ()
    nothing_is_booked(install)


@pytest.mark.parametrize("path", ("/parent/libpod-{id}", "machine.slice:libpod:{id}"))
def test_the_grant_has_the_containers_id_from_the_beginning(install, bundle, path):
    """So that the agent's event of its end has it as well, however short it lived. The key stays random."""
    id, keys = "0123456789abcdef" * 4, set()
    for _ in range(2):
        spec = config(bundle(ASK))
        spec["linux"]["cgroupsPath"] = path.format(id=id)
        assert precreate(install, spec).returncode == 0
        (grant,) = install.grants()
        assert grant.who.id == id
        keys.add(grant.key)
        assert store.forget(str(install.state), grant.key)
    assert len(keys) == 2


def test_a_podman_that_lives_long_keeps_it_until_the_deadline(install, bundle):
    """`podman system service` is such a one."""
    process = by_podman(install, bundle(ASK), "read end")
    with store.open_ledger(str(install.state)) as ledger:
        (grant,) = ledger.grants
        ledger.update(grant.replace(life=grant.life.replace(deadline=int(time.monotonic()))))
    assert install.grants() == ()
    process.communicate(b"\n")


def test_the_container_outlives_its_podman(install, bundle, runc):
    folder = bundle(ASK)
    process = by_podman(install, folder, "read end")
    assert runc.create(folder).returncode == 0
    process.communicate(b"\n")
    (grant,) = install.grants()
    assert grant.who.id == runc.ids[-1] and grant.life.creator is None and grant.life.deadline == 0


def test_a_container_whose_hook_was_left_out_keeps_the_grant(install, bundle, runc):
    """Nobody adopts the grant then; its container is found by the page that it has mounted."""
    folder = bundle(ASK)
    process = by_podman(install, folder, "read end")
    doc = config(folder)
    del doc["hooks"]
    (folder / "config.json").write_text(json.dumps(doc))
    assert runc.create(folder).returncode == 0
    process.communicate(b"\n")
    (grant,) = install.grants()
    assert grant.life.init == process_life(runc.pid(runc.ids[-1]))
    runc("delete", "--force", runc.ids[-1])
    assert install.grants() == ()


def test_a_spec_that_asks_for_nothing_goes_out_as_it_came_in(install, bundle):
    for annotations in ({}, {"other": "1"}, {**ASK, "io.kubernetes.cri.container-type": "sandbox"}):
        data = json.dumps(config(bundle(annotations, env=["NVIDIA_VISIBLE_DEVICES=all"])), indent=3).encode()
        done = precreate(install, data)
        assert (done.returncode, done.stdout, done.stderr) == (0, data, b"")
    nothing_is_booked(install)


def test_the_same_spec_as_from_the_wrapper(install, bundle, runc):
    mine, wrappers = bundle(ASK), bundle(ASK)
    edited = filtered(install, mine)
    key = waiting(install)
    marker = edited["annotations"].pop("gpu-hook.io/grant")
    assert marker.split(" ")[0] == key
    [hook] = edited.pop("hooks")["createRuntime"]
    assert hook["path"] == f"{install.prefix}/bin/oci-gpu-hook" and hook["args"] == ["oci-gpu-hook", "createRuntime"]
    assert hook["env"] == ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"] and hook["timeout"] == HOOK_TIMEOUT
    assert store.forget(str(install.state), key)
    assert runc.create(wrappers, install).returncode == 0
    other = config(wrappers)
    other_key = other["annotations"].pop("gpu-hook.io/grant").split(" ")[0]
    other["hooks"] = edited.get("hooks")
    assert json.loads(json.dumps(edited).replace(key, other_key)) == {k: v for k, v in other.items() if v is not None}


def test_the_hook_makes_it_the_containers(install, bundle, runc):
    folder = bundle(ASK, args=["sh", "-c", "env > /tmp/env; exec sleep 300"])
    filtered(install, folder)
    key = waiting(install)
    assert runc.create(folder).returncode == 0
    [grant] = install.grants()
    pid = runc.pid(runc.ids[-1])
    assert (grant.key, grant.who.id, grant.who.bundle) == (key, runc.ids[-1], str(folder))
    [told] = Follower(str(install.state), old=True).read()
    assert (told["event"], told["id"], told["key"]) == ("granted", runc.ids[-1], key)
    assert grant.life.init == process_life(pid) and grant.life.deadline == 0 and grant.life.cgroup
    assert [(s.uuid, s.memory_mib) for s in grant.shares] == [(UUIDS[0], MEMORY_MIB * 60 // 100)]
    assert Path(f"/proc/{pid}/root/run/gpu-hook/policy").read_bytes()[:4]
    environ = Path(f"/proc/{pid}/root/tmp/env")
    assert runc("start", runc.ids[-1]).returncode == 0
    end = time.monotonic() + 120
    while not environ.exists() or not environ.read_text():
        assert time.monotonic() < end
        time.sleep(0.01)
    assert f"GPU_HOOK_MEMORY_MIB={MEMORY_MIB * 60 // 100}\n" in environ.read_text()
    # A container that has room beside it, and one that has not.
    full = precreate(install, config(bundle(ASK)))
    assert full.returncode == 1 and full.stdout == b"" and full.stderr.startswith(b"GH-201: "), full
    runc("delete", "--force", runc.ids[-1])
    assert install.grants() == ()


@pytest.mark.parametrize("stages", [("createRuntime", "poststop"), ("prestart", "createRuntime", "poststop")])
def test_hooks_that_are_there_already(install, bundle, runc, stages):
    """With our hook in hooks.d it is not added again, and each stage finds that the container has its share."""
    folder = bundle(ASK, edit=hooked(install, *stages))
    before = config(folder)["hooks"]
    assert filtered(install, folder)["hooks"] == before
    assert runc.create(folder).returncode == 0
    [grant] = install.grants()
    assert grant.who.id == runc.ids[-1]


def test_gpu_hook_runtime_gives_its_own_instead(install, bundle, runc):
    """Runtime and hooks are registered: the container has one grant, and a GPU has no room for two."""
    folder = bundle(ASK)
    filtered(install, folder)
    key = waiting(install)
    done = runc.create(folder, install)
    assert done.returncode == 0, done.stderr
    [grant] = install.grants()
    assert grant.key != key and grant.who.id == runc.ids[-1]
    assert [path.name for path in (install.state / "pages").iterdir()] == [grant.key]


def test_one_grant_is_one_containers(install, bundle, runc):
    folder = bundle({**ASK, "gpu-hook.io/memory": "20%"})
    filtered(install, folder)
    assert runc.create(folder).returncode == 0
    [grant] = install.grants()
    done = runc.create(folder)  # of the same spec, with another id
    assert done.returncode == 1 and "stderr: GH-40" in done.stderr, done.stderr
    assert install.grants() == (grant,)


def test_a_marker_of_somebody_else(install, bundle, runc):
    """A forged marker with a living container's key gives nothing."""
    first = bundle({**ASK, "gpu-hook.io/memory": "20%"})
    filtered(install, first)
    assert runc.create(first).returncode == 0
    [grant] = install.grants()
    forged = bundle({"gpu-hook.io/grant": f"{grant.key} []"}, edit=hooked(install))
    filtered(install, forged)
    assert runc.create(forged).returncode == 0
    assert not os.path.exists(f"/proc/{runc.pid(runc.ids[-1])}/root/run/gpu-hook/policy")
    assert install.grants() == (grant,)


@pytest.mark.parametrize("asked", [{"gpu-hook.io/devices": "none"}, {"gpu-hook.io/memory": "1Gi"}])
@pytest.mark.parametrize("front", ["wrapper", "hook", "filter"])
def test_a_marker_with_the_key_of_a_claim(install, bundle, runc, asked, front):
    """A ResourceClaim's share waits for its own pod; anybody can compute its key."""
    request = parse({"gpu-hook.io/memory": "20%"}, {}, "", install.settings.rules)
    claim = resource_claims.PreparedClaim("0c1a1300-0000", "victims", "claim", request, ())
    held = resource_claims.hold(claim, install.settings)
    forged = {**asked, "gpu-hook.io/grant": f"{held.key} []"}
    folder = bundle(forged, edit=hooked(install) if front == "hook" else lambda spec: None)
    if front == "filter":
        filtered(install, folder)
    runc.create(folder, install if front == "wrapper" else None)
    assert held in install.grants()


def test_asked_again(install, bundle):
    """Filtering a spec a second time replaces its first grant. (podman itself filters a new spec each time.)"""
    folder = bundle(ASK)
    once = filtered(install, folder)
    first = waiting(install)
    twice = filtered(install, folder)
    second = waiting(install)
    assert first != second and json.loads(json.dumps(once).replace(first, second)) == twice


def test_nobody_comes(install, bundle):
    """After its deadline the grant does not count any more, and the next transaction removes it."""
    filtered(install, bundle(ASK))
    key = waiting(install)
    with store.open_ledger(str(install.state)) as ledger:
        [grant] = ledger.grants
        ledger.update(grant.replace(life=grant.life.replace(deadline=int(time.monotonic()))))
    assert install.grants() == ()
    filtered(install, bundle(ASK))
    assert waiting(install) != key
    assert len(list((install.state / "pages").iterdir())) == 1


def test_a_refusal_is_left_to_the_hook_that_podman_lets_speak(install, bundle, runc):
    folder = bundle({**ASK, "gpu-hook.io/memory": "999Gi"}, edit=hooked(install, "createRuntime"))
    data = (folder / "config.json").read_bytes()
    done = precreate(install, data)
    assert (done.returncode, done.stdout) == (0, data)
    said = runc.create(folder)
    assert said.returncode == 1 and "stderr: GH-201: " in said.stderr
    nothing_is_booked(install)
    [told] = Follower(str(install.state), old=True).read()
    assert (told["event"], told["id"], told["codes"]) == ("refused", runc.ids[-1], ["GH-201"])


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "GH-401"),
        (b"{", "GH-401"),
        (b"[]", "GH-401"),
        (b'{"annotations": {"gpu-hook.io/memory": 1}}', "GH-401"),
        (b'{"annotations": {"gpu-hook.io/memory": "1Gi"}, "root": {"path": "rootfs"}}', "GH-401"),
        (b'{"annotations": {"gpu-hook.io/memory": "1Gi"}, "root": {"path": "/"}, "hooks": [1]}', "GH-401"),
        (b'{"annotations": {"gpu-hook.io/memory": "1Gi"}, "root": {"path": "/"}, "hooks": {"prestart": 1}}', "GH-401"),
        (b'{"annotations": {"gpu-hook.io/memroy": "1Gi"}}', "GH-102"),
        (b" " * (16 << 20) + b"{}", "GH-401"),
    ],
)
def test_what_is_not_a_spec_or_not_a_request(install, data, code):
    done = precreate(install, data)
    assert done.returncode == 1 and done.stdout == b"" and done.stderr.decode().startswith(code), done
    nothing_is_booked(install)


def test_the_rights_that_would_reach_other_gpus(install, bundle):
    def edit(spec: dict[str, Any]) -> None:
        spec["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]

    done = precreate(install, config(bundle(ASK, edit=edit)))
    assert done.returncode == 1 and done.stdout == b"" and done.stderr.startswith(b"GH-403: ")
    nothing_is_booked(install)


def test_nobody_reads_what_it_says(install, bundle):
    reader, writer = os.pipe()
    os.close(reader)
    command = [str(install.prefix / "bin/oci-gpu-hook"), "precreate"]
    data = json.dumps(config(bundle(ASK))).encode()
    done = subprocess.run(command, input=data, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert done.returncode == 1 and done.stderr.startswith(b"GH-401: "), done
    nothing_is_booked(install)


def test_an_old_boots_grant(install, bundle):
    filtered(install, bundle(ASK))
    [grant] = install.grants()
    assert grant.life.boot_id == boot_id()
    with store.open_ledger(str(install.state)) as ledger:
        ledger.update(grant.replace(life=grant.life.replace(boot_id="another")))
    assert install.grants() == ()
