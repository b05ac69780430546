"""What annotations and environment mean, what is refused and with which words."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oci_hook.core import collect, dialects, units, value_parsers
from oci_hook.core.layout import ENV_SET, REQUEST_DIR, VISIBLE_DIR
from oci_hook.core.request import GpuRequest, Request, parse
from oci_hook.core.rules import Rules
from oci_hook.core.terms import Terms
from oci_hook.errors import MAX_LINE, RequestError
from oci_hook.oci import request_mounts
from testbed.long import draws

P = "gpu-hook.io/"
RULES = Rules()


def ask(container: str = "", env: dict[str, str] | None = None, rules: Rules = RULES, **keys: str) -> Request | None:
    """Keys of our own prefix as keyword arguments: compute_limit is compute-limit, memory__a is memory.a."""
    annotations = {P + k.replace("__", ".").replace("_", "-"): v for k, v in keys.items()}
    return parse(annotations, env or {}, container, rules)


def refused(annotations: dict[str, str], container: str = "", rules: Rules = RULES, **env: str) -> list[str]:
    with pytest.raises(RequestError) as e:
        parse(annotations, env, container, rules)
    return [str(p) for p in e.value.problems]


def codes(annotations: dict[str, str], container: str = "", rules: Rules = RULES, **env: str) -> list[str]:
    return [line[:6] for line in refused(annotations, container, rules, **env)]


# What is asked


def test_nothing_asked() -> None:
    assert parse({}, {}, "", RULES) is None
    assert parse({"io.kubernetes.cri.container-name": "a", "x": "1"}, {"PATH": "/bin"}, "a", RULES) is None


@pytest.mark.parametrize(
    "keys", [{"policy": "fs"}, {"class": "online"}, {"placement": "spread"}, {"exclusive": "false"}]
)
def test_keys_that_only_say_how_ask_for_nothing(keys: dict[str, str]) -> None:
    assert ask(**keys) is None


def test_imex_channels_come_with_whole_gpus() -> None:
    assert ask(**{"imex-channels": "3"}) is None
    one = ask(**{"gpus": "2", "imex-channels": "7, 0,7"})
    assert one == Request((GpuRequest(),) * 2, terms=Terms(imex_channels=(0, 7)), exclusive=True)
    assert codes({P + "memory": "1Gi", P + "imex-channels": "0"}) == ["GH-106"]
    assert codes({P + "gpus": "1", P + "imex-channels": ",".join(map(str, range(17)))}) == ["GH-101"]
    trusting = Rules(trust_env=True)
    env = {"NVIDIA_VISIBLE_DEVICES": "0", "NVIDIA_IMEX_CHANNELS": "1"}
    assert parse({}, env, "", trusting).terms.imex_channels == (1,)  # type: ignore[union-attr]
    assert parse({P + "devices": "0"}, env, "", RULES).terms.imex_channels == ()  # type: ignore[union-attr]


def test_memory_alone_guarantees_no_compute() -> None:
    assert ask(memory="4Gi") == Request((GpuRequest(memory=("mib", 4096)),), terms=Terms(policy="best-effort"))
    assert ask(memory="30%") == Request((GpuRequest(memory=("percent", 30)),), terms=Terms(policy="best-effort"))


def test_compute_alone_means_as_much_memory_and_the_nodes_policy() -> None:
    gpu = GpuRequest(memory=("percent", 30), compute=30)
    assert ask(compute="30%") == Request((gpu,), terms=Terms(policy="burst-share"))
    assert ask(compute="30", rules=Rules(default_policy="fixed-share")) == Request(
        (gpu,), terms=Terms(policy="fixed-share")
    )


def test_everything_at_once() -> None:
    request = parse(
        {
            P + "memory": "512Mi",
            P + "compute": "20",
            P + "devices": "0, GPU-aaaa",
            P + "gpus": "2",
            P + "policy": "bs",
            P + "compute-limit": "80%",
            P + "class": "online",
            P + "exclusive": "false",
            P + "placement": "spread",
            P + "capabilities": "video,compute,video",
        },
        {},
        "",
        RULES,
    )
    assert request == Request(
        gpus=(GpuRequest("0", ("mib", 512), 20), GpuRequest("GPU-aaaa", ("mib", 512), 20)),
        terms=Terms(policy="burst-share", priority_class="online", capabilities=("compute", "video")),
        compute_limit=80,
        placement="spread",
    )


def test_gpus_alone_are_whole_and_exclusive_unless_the_node_shares_them() -> None:
    assert ask(gpus="2") == Request((GpuRequest(), GpuRequest()), exclusive=True)
    assert ask(gpus="2", rules=Rules(whole_gpus="shared")) == Request((GpuRequest(), GpuRequest()))
    assert ask(exclusive="true", rules=Rules(whole_gpus="shared")) == Request((GpuRequest(),), exclusive=True)


def test_every_gpu() -> None:
    assert ask(gpus="all") == Request((GpuRequest(),), every_gpu=True, exclusive=True)
    both = ask(gpus="all", devices="all", memory="10%")
    assert both == Request((GpuRequest(memory=("percent", 10)),), terms=Terms(policy="best-effort"), every_gpu=True)


@pytest.mark.parametrize("keys", [{"gpus": "none"}, {"devices": "none"}, {"gpus": "none", "devices": "none"}])
def test_none_is_driver_files_without_a_gpu(keys: dict[str, str]) -> None:
    assert ask(**keys) == Request(())


def test_void_and_an_empty_list_ask_for_nothing() -> None:
    assert ask(devices="void") is None
    assert ask(devices="0,void") is None
    assert ask(devices="") is None
    assert ask(devices=" ", memory="1Gi") == ask(memory="1Gi")


def test_all_capabilities_are_those_offered() -> None:
    share, whole = ask(memory="1Gi", capabilities="all"), ask(gpus="1", capabilities="all")
    assert share and share.terms.capabilities == ("compute", "utility", "video")
    assert whole and whole.terms.capabilities == value_parsers.CAPABILITIES


# Containers of a pod


def test_a_key_for_the_container_wins() -> None:
    pod = {P + "memory": "1Gi", P + "memory.a": "2Gi", P + "compute.b": "10"}
    assert parse(pod, {}, "a", RULES) == ask(memory="2Gi")
    assert parse(pod, {}, "b", RULES) == ask(memory="1Gi", compute="10")
    assert parse(pod, {}, "c", RULES) == ask(memory="1Gi")


def test_keys_for_other_containers_ask_for_nothing_here() -> None:
    assert parse({P + "memory.a": "nonsense"}, {}, "b", RULES) is None


def test_containers_says_whom_the_plain_keys_speak_of() -> None:
    pod = {P + "containers": "a, b", P + "memory": "1Gi", "T9K_GPU_PERCENT": "5", P + "gpus.c": "1"}
    assert codes(pod, "a") == ["GH-104"]
    del pod["T9K_GPU_PERCENT"]
    assert parse(pod, {}, "a", RULES) == ask(memory="1Gi")
    assert parse(pod, {}, "c", RULES) == ask(gpus="1")
    assert parse(pod, {}, "d", RULES) is None
    assert parse({P + "containers": "a", "T9K_GPU_PERCENT": "5"}, {}, "b", RULES) is None


def test_one_container_may_decline_what_the_pod_asks() -> None:
    pod = {P + "memory": "1Gi", P + "compute": "10", P + "gpus": "2", P + "gpus.side": "none"}
    request = parse(pod, {}, "side", RULES)
    assert request and request.gpus == () and not request.every_gpu
    assert codes({**pod, P + "memory.side": "1Gi"}, "side") == ["GH-103"]


def test_a_container_name_may_have_dots() -> None:
    assert parse({P + "memory.my.app": "1Gi"}, {}, "my.app", RULES) == ask(memory="1Gi")


def test_as_podman_writes_names() -> None:
    """`podman generate kube` writes KEY/NAME, and `play kube` gives all of them to each container, without its name."""
    assert parse({P + "memory/a": "1Gi"}, {}, "", Rules()) == parse({P + "memory": "1Gi"}, {}, "", Rules())
    assert parse({P + "memory/a": "1Gi", P + "devices/a": "0"}, {}, "", Rules()) is not None
    assert parse({P + "memory/a": "1Gi", P + "memory/b": "2Gi"}, {}, "b", Rules()) == ask(memory="2Gi")
    assert parse({P + "memory/a": "1Gi"}, {}, "b", Rules()) is None
    [said] = refused({P + "memory/a": "1Gi", P + "devices/b": "0"})[:1]
    assert "speaks of a container by name, and this one has none" in said


def test_names_that_annotations_speak_of() -> None:
    pod = {P + "memory.a": "1", P + "gpus.a": "1", P + "containers": "b,a", P + "memory": "1", "x.y": "1"}
    assert collect.container_names(pod) == {
        "a": (P + "memory.a", P + "gpus.a", P + "containers"),
        "b": (P + "containers",),
    }


@pytest.mark.parametrize("key", ["memory.a", "containers"])
def test_a_name_where_the_engine_gives_none(key: str) -> None:
    assert codes({P + key: "1"}) == ["GH-102"]


# The environment


@pytest.mark.parametrize(
    ("value", "narrow_to"),
    [("", None), ("all", None), ("0", ("0",)), ("1,GPU-aa,1", ("1", "GPU-aa")), (" 0 , 2 ", ("0", "2"))],
)
def test_env_narrows(value: str, narrow_to: tuple[str, ...] | None) -> None:
    request = ask(memory="1Gi", env={"NVIDIA_VISIBLE_DEVICES": value})
    assert request == Request(
        (GpuRequest(memory=("mib", 1024)),), terms=Terms(policy="best-effort"), narrow_to=narrow_to
    )


@pytest.mark.parametrize("value", ["none", "void", "0,void"])
def test_env_can_decline_every_gpu(value: str) -> None:
    request = ask(memory="1Gi", env={"NVIDIA_VISIBLE_DEVICES": value})
    assert request and request.gpus == () and request.narrow_to == ()


EVERY_WORD = {name: "1" for name in (*ENV_SET, "GPU_HOOK_GPUS", "GPU_HOOK_MEMORY", "CUDA_VISIBLE_DEVICES")}


@pytest.mark.parametrize("visible", ["all", "0", "GPU-aa", "nonsense"])
def test_env_never_grants(visible: str) -> None:
    assert parse({}, {**EVERY_WORD, "NVIDIA_VISIBLE_DEVICES": visible}, "", RULES) is None


def test_env_that_cannot_be_read_refuses_only_who_asks() -> None:
    [line] = refused({P + "memory": "1Gi"}, NVIDIA_VISIBLE_DEVICES="GPU-1/1/0")
    assert line.startswith("GH-101: env NVIDIA_VISIBLE_DEVICES='GPU-1/1/0' has a GPU UUID that is not well-formed")


@pytest.mark.parametrize("name", ["0:1", "MIG-51de0000-1"])
def test_a_part_of_a_gpu_is_named_as_the_nvidia_runtime_names_it(name: str) -> None:
    found = parse({P + "devices": name, P + "memory": "1Gi"}, {}, "", RULES)
    assert found and [gpu.device for gpu in found.gpus] == [name]


def test_trusted_env_asks_as_annotations_do() -> None:
    trusting = Rules(trust_env=True)
    t9k = {"NVIDIA_VISIBLE_DEVICES": "0", "T9K_GPU_PERCENT": "30"}
    asked = parse({}, t9k, "", trusting)
    assert asked and asked.gpus == (GpuRequest("0", ("percent", 30)),)
    own = {"GPU_HOOK_MEMORY": "1Gi", "GPU_HOOK_COMPUTE": "10", "GPU_HOOK_COMPUTE_LIMIT": "20", "GPU_HOOK_OTHER": "?"}
    assert parse({}, own, "", trusting) == ask(memory="1Gi", compute="10", compute_limit="20")
    assert codes({}, rules=trusting, T9K_GPU_PERCENT="x") == ["GH-101"]


def test_a_copy_of_what_a_share_without_compute_finds_asks_for_the_same() -> None:
    """`docker commit` keeps the environment, with GPU_HOOK_COMPUTE=0 for no guarantee."""
    trusting = Rules(trust_env=True)
    env = {"NVIDIA_VISIBLE_DEVICES": "0", "T9K_GPU_PERCENT": "12", "T9K_GPU_MEMORY": "1024"}
    env |= {"GPU_HOOK_MEMORY_MIB": "1024", "GPU_HOOK_POLICY": "best-effort", "GPU_HOOK_CLASS": "default"}
    for compute in ("0", "0,0"):
        request = parse({}, {**env, "GPU_HOOK_COMPUTE": compute}, "", trusting)
        assert request is not None and [gpu.compute for gpu in request.gpus] == [None]
    with pytest.raises(RequestError):
        parse({}, {"GPU_HOOK_MEMORY": "1Gi", "GPU_HOOK_COMPUTE": "0"}, "", trusting)


def test_trusted_env_yields_to_annotations() -> None:
    trusting = Rules(trust_env=True)
    env = {"NVIDIA_VISIBLE_DEVICES": "all", "T9K_GPU_PERCENT": "90", "GPU_HOOK_CLASS": "offline"}
    assert ask(memory="1Gi", env=env, rules=trusting) == ask(memory="1Gi")
    request = parse({P + "class": "online"}, env, "", trusting)
    assert request and request.terms.priority_class == "online" and request.every_gpu


# What is refused


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("devices", "cuda:0", "GH-101: gpu-hook.io/devices='cuda:0' is not a GPU; did you mean 0?"),
        (
            "gpus",
            "0.5",
            "GH-101: gpu-hook.io/gpus='0.5' is not a number of GPUs from 1 to 16, and not all or none; for a part of a GPU"
            " write memory and compute, such as 50% and 50",
        ),
        ("memory", "4GB", "GH-101: gpu-hook.io/memory='4GB' is not a size; did you mean 4Gi?"),
        ("memory", "999Ti", "GH-101: gpu-hook.io/memory='999Ti' is not within 1Mi to 16Ti"),
        ("memory", "0%", "GH-101: gpu-hook.io/memory='0%' is not within 1 to 100"),
        ("compute", "101", "GH-101: gpu-hook.io/compute='101' is not within 1 to 100"),
        ("compute", "-5", "GH-101: gpu-hook.io/compute='-5' is not a whole number from 1 to 100"),
        ("gpus", "17", "GH-101: gpu-hook.io/gpus='17' is not a number of GPUs from 1 to 16, and not all or none"),
        ("devices", "0,", "GH-101: gpu-hook.io/devices='0,' has an empty item"),
        ("devices", "256", "GH-101: gpu-hook.io/devices='256' is not within 0 to 255"),
        ("devices", "GPU-/../x", "GH-101: gpu-hook.io/devices='GPU-/../x' has a GPU UUID that is not well-formed"),
        ("policy", "fair", "GH-101: gpu-hook.io/policy='fair' is not one of best-effort (be), fixed-share (fs),"),
        ("class", "high", "GH-101: gpu-hook.io/class='high' is not one of online, default, offline"),
        ("exclusive", "yes", "GH-101: gpu-hook.io/exclusive='yes' is not true or false"),
        ("placement", "", "GH-101: gpu-hook.io/placement='' is not one of binpack, spread"),
        ("capabilities", "cuda", "GH-101: gpu-hook.io/capabilities='cuda' is not all and not a list of compute,"),
        ("imex-channels", "2048", "GH-101: gpu-hook.io/imex-channels='2048' is not within 0 to 2047"),
        ("imex-channels", "all", "GH-101: gpu-hook.io/imex-channels='all' is not a whole number from 0 to 2047"),
        ("containers", "a,,b", "GH-101: gpu-hook.io/containers='a,,b' is not a list of container names, like a,b"),
        ("memroy", "1Gi", "GH-102: gpu-hook.io/memroy is not a key; did you mean gpu-hook.io/memory?"),
        ("Memory", "1Gi", "GH-102: gpu-hook.io/Memory is not a key"),
        ("", "1Gi", "GH-102: gpu-hook.io/ is not a key"),
        ("grant.a", "1", "GH-102: gpu-hook.io/grant.a is not a key"),
        ("memory.", "1Gi", "GH-102: gpu-hook.io/memory.: what follows the key is not a container name"),
        ("memory.a b", "1Gi", "GH-102: gpu-hook.io/memory.a b: what follows the key is not a container name"),
        ("containers.a", "a", "GH-102: gpu-hook.io/containers.a: containers takes no container name after it"),
        ("request", "{}", "GH-101: gpu-hook.io/request='{}' cannot be read here"),
        ("memory", "1Gi\n", r"GH-105: gpu-hook.io/memory='1Gi\n' has control characters"),
        ("memory", "1Gi\0", r"GH-105: gpu-hook.io/memory='1Gi\x00' has control characters"),
        ("memory", "\u0663", r"GH-101: gpu-hook.io/memory='\u0663' is not a size"),
    ],
)
def test_one_line_says_what_is_wrong(key: str, value: str, line: str) -> None:
    [said] = refused({P + key: value})
    assert said.startswith(line)
    assert len(said) <= MAX_LINE


@pytest.mark.parametrize(
    "keys",
    [
        {"exclusive": "true", "memory": "1Gi"},
        {"exclusive": "true", "compute": "10"},
        {"exclusive": "false", "gpus": "1"},
        {"gpus": "2", "devices": "0"},
        {"gpus": "2", "devices": "all"},
        {"gpus": "all", "devices": "0,1"},
        {"gpus": "none", "memory": "1Gi"},
        {"gpus": "none", "devices": "0"},
        {"devices": "void", "compute": "10"},
        {"memory": "1Gi", "policy": "fs"},
        {"memory": "1Gi", "compute-limit": "50"},
        {"gpus": "1", "compute-limit": "50"},
        {"compute": "50", "compute-limit": "40"},
        {"compute": "50", "compute-limit": "60", "policy": "fixed-share"},
    ],
    ids=str,
)
def test_contradictions(keys: dict[str, str]) -> None:
    assert codes({P + k: v for k, v in keys.items()}) == ["GH-103"]


def test_a_ceiling_needs_burst_share_whoever_says_the_policy() -> None:
    keys = {P + "compute": "50", P + "compute-limit": "60"}
    [line] = refused(keys, rules=Rules(default_policy="fixed-share"))
    assert line == (
        "GH-103: gpu-hook.io/compute-limit='60' is for the policy burst-share, here it is fixed-share;"
        " drop or change one"
    )
    equal = ask(compute="50", compute_limit="50")
    assert equal and equal.compute_limit == 50


def test_class_online_may_have_a_ceiling_with_fixed_share_where_compute_is_a_booking() -> None:
    keys = {"compute": "50", "compute_limit": "60", "policy": "fs", "class": "online"}
    request = ask(**keys)
    assert request and (request.compute_limit, request.terms.policy) == (60, "fixed-share")
    asked = {P + k.replace("_", "-"): v for k, v in keys.items()}
    assert codes(asked, rules=Rules(online_compute="share")) == ["GH-103"]
    assert codes({**asked, P + "class": "default"}) == ["GH-103"]
    assert codes({**asked, P + "policy": "be"}) == ["GH-103"]
    assert codes({**asked, P + "compute-limit": "49"}) == ["GH-103"]


def test_a_contradiction_names_both_and_why() -> None:
    both = "GH-103: gpu-hook.io/gpus='2' and gpu-hook.io/devices='{}' contradict each other: the second names {}"
    assert refused({P + "gpus": "2", P + "devices": "0"}) == [both.format("0", "1; drop or change one")]
    assert refused({P + "gpus": "2", P + "devices": "all"}) == [both.format("all", "every GPU; drop or change one")]


@pytest.mark.parametrize("capability", ["graphics", "display", "ngx", "compat32"])
def test_capabilities_that_pass_by_the_limits(capability: str) -> None:
    assert codes({P + "memory": "1Gi", P + "capabilities": f"compute,{capability}"}) == ["GH-106"]
    whole = ask(gpus="1", capabilities=capability)
    assert whole and whole.terms.capabilities == (capability,)


def test_all_problems_at_once() -> None:
    annotations = {
        P + "memory": "lots",
        P + "compute": "1000",
        P + "gpus": "3",
        P + "devices": "0",
        P + "colour": "red",
        P + "capabilities": "graphics",
        P + "class": "\x1b[31m",
    }
    assert sorted(codes(annotations, NVIDIA_VISIBLE_DEVICES="?")) == [
        *("GH-101", "GH-101", "GH-101", "GH-102", "GH-103", "GH-105", "GH-106")
    ]


def test_an_unreadable_value_has_no_further_consequences() -> None:
    assert codes({P + "compute": "x", P + "compute-limit": "50", P + "policy": "?"}) == ["GH-101", "GH-101"]
    assert codes({P + "gpus": "x", P + "devices": "0"}) == ["GH-101"]


def test_sizes_are_bounded() -> None:
    assert codes({P + "devices": "0" * collect.MAX_OURS}) == ["GH-105"]
    assert codes({P + "memory": "1Gi", "other": "x" * collect.MAX_ALL}) == ["GH-105"]
    assert codes({P + f"memory.c{i}": "1" * 1000 for i in range(100)}, "c1") == ["GH-105"]
    assert parse({"other": "x" * collect.MAX_ALL}, {}, "", RULES) is None
    assert codes({P + "memory": "1Gi"}, NVIDIA_VISIBLE_DEVICES="0," * collect.MAX_OURS) == ["GH-105"]
    sixteen = ",".join(str(i) for i in range(16))
    assert ask(devices=sixteen) and codes({P + "devices": sixteen + ",16"}) == ["GH-101"]


def test_the_bounds_of_sizes_exactly() -> None:
    key = P + "devices"
    fits = "0," + " " * (collect.MAX_OURS - len(key) - 3) + "1"
    assert ask(devices=fits) == ask(devices="0,1")
    assert codes({key: fits[:2] + " " + fits[2:]}) == ["GH-105"]
    rest = {P + "memory": "1Gi", "k": ""}
    rest["k"] = "x" * (collect.MAX_ALL - sum(len(k) + len(v) for k, v in rest.items()))
    assert parse(rest, {}, "", RULES) == ask(memory="1Gi")
    rest["k"] += "x"
    assert codes(rest) == ["GH-105"]
    env = "0," + " " * (collect.MAX_OURS - 3) + "1"
    assert ask(gpus="1", env={"NVIDIA_VISIBLE_DEVICES": env}) == ask(gpus="1", env={"NVIDIA_VISIBLE_DEVICES": "0,1"})
    assert codes({P + "gpus": "1"}, NVIDIA_VISIBLE_DEVICES=env + " ") == ["GH-105"]
    longest = "c" * 253
    assert parse({P + "memory." + longest: "1Gi"}, {}, longest, RULES) == ask(memory="1Gi")
    assert codes({P + "memory." + longest + "c": "1Gi"}, longest + "c") == ["GH-102"]


@pytest.mark.parametrize("character", "\0\x01\t\n\r\x1b\x1f\x7f\x80\x85\x9f")
def test_control_characters(character: str) -> None:
    assert codes({P + "memory": "1Gi" + character}) == ["GH-105"]


@pytest.mark.parametrize("character", " ~\xa0\u2028\u202e\ufeff\U000e0001")
def test_other_odd_characters_are_no_part_of_a_value_either(character: str) -> None:
    [line] = refused({P + "memory": "1Gi" + character})
    assert line.startswith("GH-101: ") and line.isascii()


def test_an_odd_key_is_shown_escaped() -> None:
    assert refused({P + "x\u202e": ""})[0].startswith(r"GH-102: 'gpu-hook.io/x\u202e' is not a key")
    long = P + "k" * (80 - len(P))
    assert refused({long: ""})[0].startswith(f"GH-102: {long} is not a key")
    assert refused({long + "k": ""})[0].startswith("GH-102: 'gpu-hook.io/kkkk")


def test_a_uuid_fits_the_policy_page() -> None:
    longest = "GPU-" + "a" * 43
    request = ask(devices=longest)
    assert request and request.gpus[0].device == longest
    assert codes({P + "devices": longest + "a"}) == ["GH-101"]


def test_whole_is_neither_memory_nor_compute() -> None:
    assert GpuRequest("0").whole
    for part in (GpuRequest(memory=("mib", 1)), GpuRequest(memory=("percent", 1)), GpuRequest(compute=1)):
        assert not part.whole


def test_many_problems_are_cut() -> None:
    lines = refused({P + f"k{i}": "" for i in range(1000)})
    assert len(lines) == 21
    assert lines[-1] == "GH-105: and 980 more problems; fix these first"
    assert len(refused({P + f"k{i}": "" for i in range(20)})) == 20
    assert refused({P + f"k{i}": "" for i in range(21)})[-1] == "GH-105: and 1 more problems; fix these first"


def test_a_value_that_is_not_text() -> None:
    [line] = refused({P + "memory": 4096})  # type: ignore[dict-item]
    assert line == "GH-101: gpu-hook.io/memory is of type int; annotations are strings: put it in quotes"


def test_reserved_keys_are_left_alone() -> None:
    assert parse({P + "grant": "\0", P + "alloc": "x" * 100}, {}, "", RULES) is None
    assert ask(memory="1Gi", grant="x") == ask(memory="1Gi")


# Each GPU by itself

FOR_A = '{"a": [{"memory": "4Gi", "compute": 60}, {"memory": 2048, "device": 1}], "b": [{}]}'
ENTRIES = (GpuRequest(None, ("mib", 4096), 60), GpuRequest("1", ("mib", 2048)))


def listed(value: str, container: str = "", **keys: str) -> Request | None:
    annotations = {P + k.replace("__", ".").replace("_", "-"): v for k, v in keys.items()}
    return parse({**annotations, P + "request": value}, {}, container, RULES, decode=request_mounts.decode)


def unlisted(value: str, container: str = "", **keys: str) -> list[str]:
    with pytest.raises(RequestError) as e:
        listed(value, container, **keys)
    return [str(p) for p in e.value.problems]


def test_request_says_each_gpu_of_each_container() -> None:
    assert listed(FOR_A, "a") == Request(ENTRIES)
    assert listed(FOR_A, "b") == Request((GpuRequest(),), exclusive=True)
    assert listed(FOR_A, "c") is None


def test_request_as_a_list_is_for_whom_plain_keys_are_for() -> None:
    value = '[{"memory": "25%"}, {"compute": "10%"}]'
    gpus = (GpuRequest(memory=("percent", 25)), GpuRequest(memory=("percent", 10), compute=10))
    assert listed(value) == listed(value, "a") == listed(value, "a", containers="a,b") == Request(gpus)
    assert listed(value, "c", containers="a,b") is None
    assert parse({P + "request.a": value}, {}, "a", RULES, decode=request_mounts.decode) == Request(gpus)
    assert parse({P + "request.a": value}, {}, "b", RULES, decode=request_mounts.decode) is None


def test_request_without_compute_is_best_effort() -> None:
    assert listed('[{"memory": "1Gi"}, {"memory": "2Gi"}]') == Request(
        (GpuRequest(memory=("mib", 1024)), GpuRequest(memory=("mib", 2048))), terms=Terms(policy="best-effort")
    )


def test_request_goes_with_the_keys_that_say_how() -> None:
    keys = {"policy": "bs", "compute_limit": "80", "class": "online", "placement": "spread", "exclusive": "false"}
    assert listed(FOR_A, "a", **keys) == Request(
        ENTRIES,
        terms=Terms(policy="burst-share", priority_class="online"),
        compute_limit=80,
        exclusive=False,
        placement="spread",
    )
    assert listed("[{}, {}]", exclusive="true") == Request((GpuRequest(), GpuRequest()), exclusive=True)


def test_request_in_several_lines() -> None:
    assert listed('[\n\t{"memory": "1Gi"}\n]') == ask(memory="1Gi")


@pytest.mark.parametrize("key", ["memory", "compute", "gpus", "devices"])
def test_what_is_said_of_a_container_by_name_wins_over_what_is_said_of_its_pod(key: str) -> None:
    assert listed('{"a": [{"memory": "1Gi"}]}', "a", **{key: "1"}) == ask(memory="1Gi")
    own = parse({P + f"{key}.a": "1", P + "request": "[{}, {}]"}, {}, "a", RULES, decode=request_mounts.decode)
    assert own == ask(**{key: "1"})


def test_one_container_may_decline_the_pods_request() -> None:
    assert listed("[{}]", "a", gpus__a="none") == Request(())
    assert listed("[{}]", "a", devices__a="void") is None


@pytest.mark.parametrize(
    ("value", "keys"),
    [
        ("[{}]", {"memory": "1Gi"}),
        ('[{"memory": "1Gi"}]', {"memory": "1Gi"}),
        ("[{}, {}]", {"gpus": "2"}),
        ('[{"device": 0}]', {"devices": "0"}),
        ("[{}]", {"gpus": "none"}),
        ('{"a": [{}]}', {"memory__a": "1Gi"}),
        ('{"a": [{}]}', {"request__a": "[{}, {}]"}),
        ('[{"memory": "1Gi"}]', {"exclusive": "true"}),
        ('[{"compute": 10}]', {"exclusive": "true"}),
        ('[{"memory": "1Gi"}]', {"policy": "fs"}),
        ('[{"memory": "1Gi"}]', {"compute_limit": "50"}),
        ('[{"compute": 20}, {"compute": 60}]', {"compute_limit": "50"}),
    ],
    ids=str,
)
def test_request_contradicts(value: str, keys: dict[str, str]) -> None:
    [line] = unlisted(value, "a", **keys)
    assert line.startswith("GH-103"), line


def test_request_and_another_system() -> None:
    for annotations in ({"T9K_GPU_PERCENT": "30"}, {"nvidia.com/gpu": "1"}, {"NVIDIA_VISIBLE_DEVICES": "none"}):
        for value in ("[{}]", '{"a": [{}]}'):
            with pytest.raises(RequestError) as e:
                parse({**annotations, P + "request": value}, {}, "a", RULES, decode=request_mounts.decode)
            assert [p.code for p in e.value.problems] == ["GH-104"], (annotations, value)


def test_a_share_in_a_request_bounds_the_capabilities() -> None:
    assert unlisted('[{}, {"memory": "1Gi"}]', capabilities="graphics")[0].startswith("GH-106")
    request = listed('[{}, {"compute": 5}]', capabilities="all")
    assert request and request.terms.capabilities == value_parsers.WITH_A_SHARE


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("", "GH-101: gpu-hook.io/request='' Expecting value"),
        ("{", "GH-101: gpu-hook.io/request='{' Expecting property name"),
        ("null", "GH-101: gpu-hook.io/request='null' is no list of GPUs"),
        ("3", "GH-101: gpu-hook.io/request='3' has no list of 1 to 16 GPUs for this container"),
        ("[]", "GH-101: gpu-hook.io/request='[]' has no list of 1 to 16 GPUs for this container"),
        ('{"a": {}}', "GH-101: gpu-hook.io/request='{\"a\": {}}' has no list of 1 to 16 GPUs for this container"),
        ("[" + "{}," * 16 + "{}]", "GH-101: gpu-hook.io/request='"),
        ("[[]]", "GH-101: gpu-hook.io/request='[[]]' GPU 1 is not an object with memory, compute, device"),
        ('[{}, {"mem": 1}]', "GPU 2 has 'mem'; a GPU has memory, compute, device"),
        ('[{"memory": "4G"}]', "GPU 1 (memory '4G') is not a size"),
        ('[{"compute": 101}]', "GPU 1 (compute '101') is not within 1 to 100"),
        ('[{"compute": 1.5}]', "GPU 1: compute is neither text nor a whole number in bounds"),
        ('[{"memory": true}]', "GPU 1: memory is neither text nor a whole number in bounds"),
        ('[{"memory": null}]', "GPU 1: memory is neither text nor a whole number in bounds"),
        ('[{"device": -1}]', "GPU 1: device is neither text nor a whole number in bounds"),
        ('[{"device": "0:x"}]', "GPU 1 (device '0:x') is not"),
        ('[{"device": 0}, {"device": "0"}]', "names GPU 0 twice"),
        ('[{"memory": 1, "memory": 2}]', "an object has a key twice"),
        ('{"a": [{}], "a": []}', "an object has a key twice"),
        ('{"a b": [{}], "a": [{}]}', "GH-102: gpu-hook.io/request: 'a b' is not a container name"),
        ("[" * 60000, "JSON is nested too deep"),
        ("[" + "9" * 6000 + "]", "GH-101"),
        (r'["\ud800"]', "GPU 1 is not an object"),
        (r'[{"memory": "\ud800"}]', r"GPU 1 (memory '\ud800') is not a size"),
        ('["\ud800"]', "surrogates not allowed"),
    ],
    ids=lambda text: text[:30],
)
def test_a_request_that_cannot_be_read(value: str, line: str) -> None:
    [said] = unlisted(value, "a")
    assert line in said


def test_a_request_by_names_where_there_are_none() -> None:
    assert unlisted('{"a": [{}]}')[0].startswith("GH-102: gpu-hook.io/request speaks of a container by name")
    assert listed("{}") is None
    assert unlisted("[{}]", request__a="[{}]")[0].startswith("GH-102")


def test_names_in_a_request_are_spoken_of() -> None:
    spoken = collect.container_names({P + "request": FOR_A, P + "memory.c": "1"}, request_mounts.decode)
    assert spoken == {"a": (P + "request",), "b": (P + "request",), "c": (P + "memory.c",)}
    assert collect.container_names({P + "request": "{"}, request_mounts.decode) == {}


# Anything at all

KEYS = [
    *(P + k for k in ("memory", "compute", "gpus", "devices", "policy", "compute-limit", "class", "exclusive")),
    *(P + k for k in ("placement", "capabilities", "containers", "request", "grant", "alloc", "memory.a", "gpus.a")),
    *("NVIDIA_VISIBLE_DEVICES", "T9K_GPU_PERCENT", "T9K_GPU_MEMORY", "tensorstack.dev/nvidia-gpu"),
    *(key for name in dialects.NAMES for key in dialects.table(name).KEYS),
    P + "request.a",
]
VALUES = [
    "1",
    "0",
    "30",
    "30%",
    "4Gi",
    "100%",
    "all",
    "none",
    "void",
    "0,1",
    "GPU-a",
    "true",
    "false",
    "bs",
    "fs",
    "be",
]
VALUES += ["online", "spread", "compute", "graphics", "a", "a,b", "", "16", "80", "100", "200", "offline"]
VALUES += [
    '[{"memory": "1Gi"}, {"compute": 30}]',
    '{"a": [{"memory": "30%", "device": 0}]}',
    "[{}]",
    '{"b": [1]}',
    "{}",
]
some_key = st.sampled_from(KEYS) | st.text(max_size=8).map(lambda t: P + t) | st.text(max_size=8)
some_value = st.sampled_from(VALUES) | st.text(max_size=12)
some_env = st.dictionaries(
    st.sampled_from(["NVIDIA_VISIBLE_DEVICES", "T9K_GPU_PERCENT", "GPU_HOOK_MEMORY", "GPU_HOOK_GPUS"]), some_value
)
some_name = st.sampled_from(["", "a", "b"])
some_rules = st.builds(
    Rules,
    default_policy=st.sampled_from(value_parsers.POLICIES),
    whole_gpus=st.sampled_from(["exclusive", "shared"]),
    trust_env=st.booleans(),
    dialects=st.sets(st.sampled_from(dialects.NAMES)).map(lambda names: tuple(sorted(names))),
    qgpu_memory_unit=st.sampled_from(["none", "MiB", "GiB"]),
)
some_mounts = st.lists(
    st.tuples(
        st.sampled_from([REQUEST_DIR, VISIBLE_DIR, REQUEST_DIR + "/"]).flatmap(
            lambda folder: (
                st.tuples(st.sampled_from(["memory", "compute", "gpus", "devices", "x", ""]), some_value).map(
                    lambda pair: f"{folder}/{pair[0]}={pair[1]}"
                )
                | some_value.map(lambda name: f"{folder}/{name}")
            )
        ),
        st.sampled_from(["/dev/null", "/dev/null", "/dev/zero"]),
    ),
    max_size=3,
)


@settings(max_examples=draws(600), deadline=None)
@given(
    st.dictionaries(some_key, some_value, max_size=6),
    some_env,
    st.sampled_from(["", "a", "b"]),
    some_rules,
    some_mounts,
)
def test_a_request_within_bounds_or_coded_lines(
    annotations: dict[str, str], env: dict[str, str], container: str, rules: Rules, mounts: list[tuple[str, str]]
) -> None:
    try:
        request = parse(annotations, env, container, rules, mounts, request_mounts.decode)
    except RequestError as e:
        assert e.problems
        for problem in e.problems:
            assert problem.code in ("GH-101", "GH-102", "GH-103", "GH-104", "GH-105", "GH-106")
            assert len(str(problem)) <= MAX_LINE and "\n" not in str(problem)
        return
    if request is not None:
        check_bounds(request)
        assert any(k.startswith(P) or k in KEYS for k in annotations) or rules.trust_env or mounts


json_value = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from(VALUES)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["memory", "compute", "device", "a", "b", ""]), inner, max_size=4)
    ),
    max_leaves=8,
)


@settings(max_examples=draws(300), deadline=None)
@given(json_value, st.sampled_from(["", "a"]))
def test_any_json_in_request(value: object, container: str) -> None:
    try:
        request = listed(json.dumps(value), container)
    except RequestError as e:
        assert all(len(str(p)) <= MAX_LINE for p in e.problems)
        return
    if request is not None:
        check_bounds(request)


def check_bounds(request: Request) -> None:
    assert len(request.gpus) <= value_parsers.MAX_GPUS
    assert not request.every_gpu or len(request.gpus) == 1
    assert request.terms.policy in value_parsers.POLICIES
    assert request.terms.priority_class in value_parsers.CLASSES
    assert request.placement in (None, *value_parsers.PLACEMENTS)
    assert request.terms.capabilities and set(request.terms.capabilities) <= set(value_parsers.CAPABILITIES)
    assert request.narrow_to is None or len(request.narrow_to) <= value_parsers.MAX_GPUS
    named = [gpu.device for gpu in request.gpus if gpu.device is not None]
    assert len(set(named)) == len(named) <= len(request.gpus)
    for gpu in request.gpus:
        unit, amount = gpu.memory or ("percent", 1)
        assert 1 <= amount <= {"mib": units.MAX_MEMORY_MIB, "percent": 100}[unit]
        assert gpu.compute is None or 1 <= gpu.compute <= 100
        assert gpu.whole or set(request.terms.capabilities) <= set(value_parsers.WITH_A_SHARE)
        assert gpu.whole or not request.exclusive
        if request.compute_limit is not None:
            assert request.terms.policy == "burst-share" and (gpu.compute or 0) <= request.compute_limit <= 100
    assert request.compute_limit is None or any(gpu.compute for gpu in request.gpus)
