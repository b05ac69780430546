"""Words that seem to ask for a GPU and are not understood: what is said of each, and whether it is sure."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oci_hook.core import collect, near_misses, nearest
from oci_hook.core.rules import Rules
from oci_hook.errors import Problem
from testbed.long import draws

P = "gpu-hook.io/"
RULES = Rules()


def found(annotations: dict[str, str], container: str = "", asks: bool = False) -> list[tuple[bool, str]]:
    misses = near_misses.in_annotations(annotations, container, RULES, asks)
    return [(miss.sure, str(miss.problem)) for miss in misses]


SURE = {
    "gpuhook.io/memory": "gpu-hook.io/memory?",
    "gpu-hook/memory": "gpu-hook.io/memory?",
    "gpu_hook.io/compute": "gpu-hook.io/compute?",
    "GPU-Hook.io/compute-limit": "gpu-hook.io/compute-limit?",
    "gpu-hok.io/memroy": "gpu-hook.io/memory?",
    "gpu-hook.io.memory": "gpu-hook.io/memory?",
    "io.gpu-hook/gpus": "gpu-hook.io/gpus?",
    "GPU_HOOK_MEMORY": "gpu-hook.io/memory?",
    "nvidia.com/gpu.shared": "nvidia.com/gpu?",
    "nvidia.com/gpumemory": "nvidia.com/gpumem?",
    "tencent.com/vcuda-cores": "tencent.com/vcuda-core?",
    "tensorstack.dev/nvidia-gpu-persent": "tensorstack.dev/nvidia-gpu-percent?",
    "T9K_GPU_MEM": "T9K_GPU_MEMORY?",
    "NVIDIA_VISIBLE_DEVICE": "NVIDIA_VISIBLE_DEVICES?",
    "CUDA_VISIBLE_DEVICES": "NVIDIA_VISIBLE_DEVICES?",
    "gpu": "gpu-hook.io/gpus?",
    "gpu_memory": "gpu-hook.io/memory?",
    "volcano.sh/vgpu-number": "gpu-hook.io/gpus?",
    "tke.cloud.tencent.com/qgpu-memory": "or write gpu-hook.io/memory",
}


@pytest.mark.parametrize("key", SURE)
def test_a_near_miss_names_the_nearest_word(key: str) -> None:
    [(sure, line)] = found({key: "4Gi"})
    assert sure and line.startswith(f"GH-108: {key}='4Gi' is ") and line.endswith(SURE[key])


@pytest.mark.parametrize("key", SURE)
def test_beside_a_request_only_our_own_misspelt_keys_are_sure(key: str) -> None:
    """They would change the share; other systems' words may be there for others."""
    alone = found({key: "1"})[0][1]
    beside = [sure for sure, _ in found({key: "1"}, asks=True)]
    if "not a key of gpu-hook" in alone:
        assert beside == [True]
    else:
        assert True not in beside


@pytest.mark.parametrize(
    "key",
    [
        *("amd.com/gpu", "gpu.intel.com/i915", "huawei.com/Ascend910", "cdi.k8s.io/x_nvidia-gpu"),
        *(
            "webhook.io/gate",
            "example.com/team",
            "io.kubernetes.cri.container-name",
            "memory",
            P + "grant",
            P + "alloc",
        ),
    ],
)
def test_words_of_others_are_none(key: str) -> None:
    assert found({key: "1"}, "a") == []


@pytest.mark.parametrize("key", ["example.com/gpu-team", "hami.io/vgpu-node", "tencent.com/gpu-assigned"])
def test_what_may_be_anothers_is_not_sure(key: str) -> None:
    assert [sure for sure, _ in found({key: "1"})] == [False]
    assert found({key: "1"}, asks=True) == []


@pytest.mark.parametrize(
    ("suffix", "container", "sure"),
    [
        ("trianer", "trainer", True),
        ("traner", "trainer", True),
        ("trainner", "trainer", True),
        ("leader", "reader", False),
        ("trains", "train", False),
    ],
)
def test_a_slip_in_the_containers_name(suffix: str, container: str, sure: bool) -> None:
    key = f"{P}memory.{suffix}"
    [(said, line)] = found({key: "4Gi"}, container)
    assert said == sure and line.endswith(f"did you mean {P}memory.{container}?")
    assert [said for said, _ in found({key: "4Gi"}, container, asks=True)] == [False]


@pytest.mark.parametrize(
    ("suffix", "container"),
    [("worker-1", "worker-2"), ("a", "b"), ("db", "web"), ("x", ""), ("train", "train"), ("gpu1", "gpu2")],
)
def test_names_that_are_simply_different(suffix: str, container: str) -> None:
    assert found({f"{P}memory.{suffix}": "4Gi"}, container) == []


def test_keys_that_only_say_how() -> None:
    [(sure, line)] = found({P + "policy": "fs"})
    assert sure and "nothing asks for one; add gpu-hook.io/memory or gpu-hook.io/compute" in line
    assert found({P + "class.a": "online"}, "a")[0][0]
    assert found({P + "class.a": "online"}, "b") == []
    # Another container of the Pod asks: this one may well be a sidecar.
    for asking in ("memory.a", "request", "exclusive"):
        assert found({P + "policy": "fs", P + asking: "x"}, "b") == []
    assert found({P + "containers": "a", P + "policy": "fs"}, "b") == []
    assert [sure for sure, _ in found({P + "containers": "a", P + "policy": "fs"}, "a")] == [True]
    assert found({P + "policy": "fs"}, asks=True) == []


@pytest.mark.parametrize(
    ("key", "sure"),
    [
        ("tencent.com/vcuda-core-limit", True),
        ("nvidia.com/priority", True),
        ("NVIDIA_DRIVER_CAPABILITIES", False),
        ("NVIDIA_REQUIRE_CUDA", False),
    ],
)
def test_words_of_other_systems_that_only_say_how(key: str, sure: bool) -> None:
    [(said, line)] = found({key: "0"})
    assert said == sure and line.startswith(f"GH-108: {key}='0' says how a share is held, and nothing asks for one;")
    assert found({key: "0"}, asks=True) == []
    assert found({key: "0", P + "memory.a": "1Gi"}, "b") == []  # it is for a
    assert found({key: "0", P + "containers": "a"}, "b") == []


def test_a_word_of_a_dialect_that_is_off_and_only_says_how() -> None:
    [(sure, line)] = found({"tke.cloud.tencent.com/app-class": "online"})
    assert not sure and "a word of qgpu, which this node does not read" in line
    assert found({"tke.cloud.tencent.com/app-class": "online"}, asks=True) == []


def test_a_mode_of_others_has_no_hint() -> None:
    [(sure, line)] = found({"nvidia.com/vgpu-mode": "hami-core"})
    assert not sure and "did you mean" not in line


@pytest.mark.parametrize("key", ["gpuhook.io/memory.a", "hook.io/memory", "hook.io/memory.a"])
def test_where_no_container_has_a_name(key: str) -> None:
    """docker and runc give none, so nobody else will say so."""
    [(sure, line)] = found({key: "1Gi"})
    assert sure and line.endswith("did you mean gpu-hook.io/memory?")


@pytest.mark.parametrize("key", ["tke.cloud.tencent.com/networks-status", "tensorstack.dev/owner"])
def test_other_keys_in_the_domain_of_a_dialect_are_none(key: str) -> None:
    assert found({key: "x"}) == [] == found({key: "x"}, asks=True)


def test_hook_io_with_other_words_is_anothers() -> None:
    assert found({"hook.io/url": "x"}) == [] == found({"web.hook.io/memory": "x"})


@pytest.mark.parametrize(("suffix", "container"), [("app", "app-1"), ("app-1", "app"), ("ml_app", "ml_app_2")])
def test_a_name_without_its_number(suffix: str, container: str) -> None:
    [(sure, line)] = found({f"{P}memory.{suffix}": "4Gi"}, container)
    assert not sure and line.endswith(f"did you mean {P}memory.{container}?")


def test_keys_for_other_containers_are_left_to_them() -> None:
    assert found({"gpuhook.io/memory.trianer": "1Gi"}, "trainer")[0][1].endswith(
        "did you mean gpu-hook.io/memory.trainer?"
    )
    assert found({"gpuhook.io/memory.a": "4Gi"}, "b") == []
    assert found({"gpuhook.io/memory.a": "4Gi"}, "a")[0][1].endswith("did you mean gpu-hook.io/memory.a?")
    assert found({"gpuhook.io/memory": "4Gi", P + "containers": "a"}, "b") == []


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("/run/gpuhook/request/memory=4Gi", "/run/gpu-hook/request/memory=4Gi"),
        ("/run/gpu-hook/memory=4Gi", "/run/gpu-hook/request/memory=4Gi"),
        ("/run/gpu-hook/requests/compute=30", "/run/gpu-hook/request/compute=30"),
        ("/opt/gpu-hook/request/gpu=1", "/run/gpu-hook/request/gpus=1"),
    ],
)
def test_mounts(path: str, key: str) -> None:
    [miss] = near_misses.in_mounts([(path, "/dev/null")])
    assert miss.sure and str(miss.problem).endswith(f"did you mean {key}?")
    assert near_misses.in_mounts([(path, "/etc/hosts")]) == []


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("mem=4Gi", "mount /run/gpu-hook/request/mem is not a key; did you mean memory?"),
        ("comput=30", "did you mean compute?"),
        ("zzzzzzzz=1", "is not KEY=VALUE with a key of memory, "),
        ("memory", "mount /run/gpu-hook/request/memory is not KEY=VALUE with a key of "),
    ],
)
def test_mounts_with_another_key(entry: str, says: str) -> None:
    problems: list[Problem] = []
    collect.from_mounts([(f"/run/gpu-hook/request/{entry}", "/dev/null")], "", RULES, problems)
    assert [says in str(problem) for problem in problems] == [True]


def test_mounts_of_others() -> None:
    paths = ("/run/gpu-hook/request/memory=4Gi", "/proc/kcore", "/run/gpus/x", "/var/run/nvidia-container-devices/0")
    assert near_misses.in_mounts([(path, "/dev/null") for path in paths]) == []


def test_labels_and_environment() -> None:
    [miss] = near_misses.in_labels({"a": "b", P + "memory": "4Gi"}, False)
    assert miss.sure and "-v /dev/null:/run/gpu-hook/request/memory=4Gi" in str(miss.problem)
    assert near_misses.in_labels({"maintainer": "x", "com.nvidia.gpu": "y"}, False) == []
    env = {"GPU_HOOK_MEMORY": "4Gi", "NVIDIA_VISIBLE_DEVICES": "all"}
    [miss] = near_misses.in_environment(env, RULES, False)
    assert not miss.sure and "gpu-hook/request/memory=…), or `trust_env`" in str(miss.problem)
    assert near_misses.in_environment(env, Rules(trust_env=True), False) == []
    assert near_misses.in_environment(env, RULES, True) == []
    del env["GPU_HOOK_MEMORY"]
    assert near_misses.in_environment(env, RULES, False) == []
    assert "devices" in str(near_misses.in_environment(env, RULES, False, by_hand=True)[0].problem)


VARIABLES = {  # on a node that trusts the environment -> (sure, how the line ends)
    "GPU_HOOK_MEMROY": (True, "did you mean GPU_HOOK_MEMORY?"),
    "GPUHOOK_MEMORY": (True, "did you mean GPU_HOOK_MEMORY?"),
    "GPU_HOOK_POLICY": (True, "add GPU_HOOK_MEMORY or GPU_HOOK_COMPUTE"),
    "GPU_HOOK_XYZ": (False, "a share is asked for with GPU_HOOK_MEMORY and GPU_HOOK_COMPUTE"),
    "T9K_GPU_MEM": (False, "did you mean T9K_GPU_MEMORY?"),
    "NVIDIA_VISIBLE_DEVICE": (False, "did you mean NVIDIA_VISIBLE_DEVICES?"),
    "NVIDIA_GPU_MEM_LIMIT": (False, "did you mean NVIDIA_GPU_MEMORY_LIMIT?"),
}


@pytest.mark.parametrize("name", VARIABLES)
def test_variables_where_the_environment_is_trusted(name: str) -> None:
    sure, end = VARIABLES[name]
    env = {"PATH": "/bin", name: "1"}
    [miss] = near_misses.in_environment(env, Rules(trust_env=True), False)
    assert miss.sure == sure and str(miss.problem).startswith(f"GH-108: env {name}='1' ")
    assert str(miss.problem).endswith(end)
    beside = near_misses.in_environment(env, Rules(trust_env=True), True)
    assert [miss.sure for miss in beside] == ([] if name == "GPU_HOOK_POLICY" else [False])


def test_a_variable_of_a_dialect_that_is_off() -> None:
    [miss] = near_misses.in_environment({"T9K_GPU_MEMORY": "1"}, Rules(trust_env=True, dialects=("hami",)), False)
    assert not miss.sure and "add t9k to `dialects`" in str(miss.problem)


@pytest.mark.parametrize(
    "env",
    [
        {"NVIDIA_VISIBLE_DEVICES": "void", "NVIDIA_DRIVER_CAPABILITIES": "all", "CUDA_VISIBLE_DEVICES": "0"},
        {"NVIDIA_REQUIRE_CUDA": "cuda>=12", "NV_CUDA_LIB_VERSION": "12.4", "NVIDIA_PRODUCT_NAME": "CUDA"},
        {"GPU_HOOK_SERVICE_HOST": "10.0.0.1", "GPU_HOOK_PORT_80_TCP": "tcp://10.0.0.1:80", "T9K_GPU_PORT": "tcp://x"},
        {"NVIDIA_VISIBLE_DEVICES": "none", "GPU_HOOK_POLICY": "fs"},
        {"GPU_HOOK_GPUS": "0", "GPU_HOOK_POLICY": "fs"},
        {"GPU_HOOK_MEMORY_MIB": "1024", "GPU_HOOK_COMPUTE": "0", "GPU_HOOK_POLICY": "fs", "GPU_HOOK_CLASS": "online"},
        {},
    ],
    ids=str,
)
def test_variables_of_others_where_the_environment_is_trusted(env: dict[str, str]) -> None:
    assert near_misses.in_environment(env, Rules(trust_env=True), False) == []


words = st.dictionaries(
    st.one_of(
        st.text(max_size=60),
        st.tuples(st.sampled_from(["gpu", P, "gpuhook.io/", "nvidia.com/gpu", "T9K_"]), st.text(max_size=300)).map(
            "".join
        ),
    ),
    st.text(max_size=30),
    max_size=5,
)


@settings(max_examples=draws(200), deadline=None)
@given(words, st.text(max_size=12), st.booleans())
def test_whatever_is_written_is_one_bounded_line(annotations: dict[str, str], container: str, asks: bool) -> None:
    for _, line in found(annotations, container, asks):
        assert len(line) <= 300 and line.isprintable()


@given(st.text(max_size=20), st.text(max_size=20))
def test_distance_is_a_distance(one: str, other: str) -> None:
    far = nearest.distance(one, other)
    assert far == nearest.distance(other, one)
    assert (far == 0) == (one == other)
    assert abs(len(one) - len(other)) <= far <= max(len(one), len(other))


def test_distance_counts_slips() -> None:
    assert nearest.distance("trianer", "trainer") == 1
    assert nearest.distance("memroy", "memory") == 1
    assert nearest.distance("kitten", "sitting") == 3
