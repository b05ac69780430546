"""Other systems' words: each row of each table, and two dialects beside each other."""

import ast
from pathlib import Path
from typing import Any

import pytest

from oci_hook.core import dialects
from oci_hook.core.request import GpuRequest, Request, parse
from oci_hook.core.rules import Rules
from oci_hook.core.terms import Terms
from oci_hook.errors import RequestError
from tests.terms import made

P = "gpu-hook.io/"
RULES = Rules()


def t9k(annotations: dict[str, str]) -> Request | None:
    return parse(annotations, {}, "", RULES)


def codes(annotations: dict[str, str], rules: Rules = RULES) -> list[str]:
    with pytest.raises(RequestError) as e:
        parse(annotations, {}, "", rules)
    return [p.code for p in e.value.problems]


def memory(mib: int | None, percent: int | None) -> tuple[str, int] | None:
    return ("mib", mib) if mib is not None else ("percent", percent) if percent is not None else None


def share(device: str | None, mib: int | None = None, percent: int | None = None, visible: str = "index") -> Request:
    return made(Request, (GpuRequest(device, memory(mib, percent)),), policy="best-effort", visible=visible)


@pytest.mark.parametrize(
    ("annotations", "request_"),
    [
        ({"NVIDIA_VISIBLE_DEVICES": "0", "T9K_GPU_PERCENT": "30"}, share("0", percent=30)),
        ({"NVIDIA_VISIBLE_DEVICES": "0", "T9K_GPU_MEMORY": "4096"}, share("0", mib=4096)),
        ({"T9K_GPU_MEMORY": "4096"}, share(None, mib=4096)),
        ({"tensorstack.dev/nvidia-gpu-percent": "25"}, share(None, percent=25)),
        ({"NVIDIA_VISIBLE_DEVICES": "2"}, Request((GpuRequest("2"),), exclusive=True)),
        ({"tensorstack.dev/nvidia-gpu": "2"}, Request((GpuRequest(), GpuRequest()), exclusive=True)),
        (
            {"tensorstack.dev/nvidia-gpu-node": "1"},
            made(Request, (GpuRequest(),), every_gpu=True, exclusive=True, visible="all"),
        ),
        ({"NVIDIA_VISIBLE_DEVICES": "none"}, Request(())),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, None),
        ({"NVIDIA_VISIBLE_DEVICES": ""}, None),
        ({"tensorstack.dev/something-else": "x", "T9K_OTHER": "y"}, None),
    ],
    ids=str,
)
def test_t9k(annotations: dict[str, str], request_: Request | None) -> None:
    assert t9k(annotations) == request_


@pytest.mark.parametrize(
    "annotations",
    [
        {"T9K_GPU_PERCENT": "0"},
        {"T9K_GPU_PERCENT": "101"},
        {"T9K_GPU_MEMORY": "4Gi"},
        {"T9K_GPU_MEMORY": "30%"},
        {"tensorstack.dev/nvidia-gpu": "all"},
        {"tensorstack.dev/nvidia-gpu-node": "2"},
        {"NVIDIA_VISIBLE_DEVICES": "MIG-aa/1"},
        {"NVIDIA_VISIBLE_DEVICES": "0:"},
        {"NVIDIA_VISIBLE_DEVICES": "example.com/gpu=0"},
    ],
    ids=str,
)
def test_t9k_values_out_of_bounds(annotations: dict[str, str]) -> None:
    assert codes(annotations) == ["GH-101"]


@pytest.mark.parametrize(
    "annotations",
    [
        {"T9K_GPU_PERCENT": "30", "T9K_GPU_MEMORY": "4096", "tensorstack.dev/nvidia-gpu-percent": "31"},
        {"tensorstack.dev/nvidia-gpu": "1", "tensorstack.dev/nvidia-gpu-percent": "30"},
        {"tensorstack.dev/nvidia-gpu": "2", "tensorstack.dev/nvidia-gpu-node": "1"},
        {"tensorstack.dev/nvidia-gpu": "2", "NVIDIA_VISIBLE_DEVICES": "0"},
    ],
    ids=str,
)
def test_t9k_contradicts_itself(annotations: dict[str, str]) -> None:
    assert codes(annotations) == ["GH-103"]


@pytest.mark.parametrize("percent", ["T9K_GPU_PERCENT", "tensorstack.dev/nvidia-gpu-percent"])
def test_t9ks_pair_is_one_share_that_is_compared_later(percent: str) -> None:
    """Which percentage so many MiB are is known once the GPU is; tests/core/test_allocate.py compares."""
    request = t9k({percent: "30", "T9K_GPU_MEMORY": "9830"})
    assert request and request.gpus == (GpuRequest(None, ("mib", 9830)),) and request.same_percent == 30
    assert t9k(dict(reversed({percent: "30", "T9K_GPU_MEMORY": "9830"}.items()))) == request


def test_how_t9k_names_gpus() -> None:
    """Indices for shares, `all` for whole nodes, UUIDs for whole GPUs and whoever asks in other words."""

    def visible(**annotations: str) -> str:
        request = t9k({key.replace("__", "/").replace("_gpu", "-gpu"): text for key, text in annotations.items()})
        assert request
        return request.terms.visible

    assert visible(T9K_GPU_PERCENT="30", NVIDIA_VISIBLE_DEVICES="1") == "index"
    assert t9k({"tensorstack.dev/nvidia-gpu": "2"}).terms.visible == "uuid"  # type: ignore[union-attr]
    assert visible(NVIDIA_VISIBLE_DEVICES="1") == "uuid"
    env = {"T9K_GPU_MEMORY": "4096", "NVIDIA_VISIBLE_DEVICES": "0"}
    assert parse({}, env, "", Rules(trust_env=True)).terms.visible == "index"  # type: ignore[union-attr]


def test_memory_beside_whole_gpus_of_gpu_manager_and_qgpu_has_no_effect() -> None:
    """As `translate` has it: their whole GPUs come with all their memory."""
    whole = Request((GpuRequest(), GpuRequest()), exclusive=True)
    assert t9k({"tencent.com/vcuda-core": "200", "tencent.com/vcuda-memory": "16"}) == whole
    assert t9k({"nvidia.com/vcuda-core": "200", "nvidia.com/vcuda-memory": "16"}) == whole
    assert codes({"tencent.com/vcuda-core": "100", P + "memory": "1Gi"}) == ["GH-104"]
    assert codes({"tencent.com/vcuda-core": "100", "tencent.com/vcuda-memory": "x"}) == ["GH-101"]


def test_qgpu_core_is_a_part_of_one_gpu_with_the_profile() -> None:
    key = "tke.cloud.tencent.com/qgpu-core"
    own = Rules(dialects=("qgpu",), qgpu_memory_unit="GiB")
    assert parse({key: "100"}, {}, "", own) == Request((GpuRequest(),), exclusive=True)
    assert codes({key: "100"}, own.replace(profile="qgpu")) == ["GH-101"]
    assert parse({key: "99"}, {}, "", own.replace(profile="qgpu")).gpus[0].compute == 99  # type: ignore[union-attr]


def test_in_a_trusted_environment_the_schedulers_pair_is_one_share() -> None:
    env = {"NVIDIA_VISIBLE_DEVICES": "0", "T9K_GPU_PERCENT": "17", "T9K_GPU_MEMORY": "4096"}
    request = parse({}, env, "", Rules(trust_env=True))
    assert request and request.gpus == (GpuRequest("0", ("mib", 4096)),)


def test_dialects_add_up_where_they_speak_of_different_things() -> None:
    request = t9k({"NVIDIA_VISIBLE_DEVICES": "1", P + "memory": "1Gi", P + "compute": "20"})
    assert request == Request((GpuRequest("1", ("mib", 1024), 20),))


def test_dialects_may_say_the_same() -> None:
    assert t9k({"T9K_GPU_PERCENT": "30", P + "memory": "30%"}) == share(None, percent=30, visible="uuid")
    t9ks, hamis = ("tensorstack.dev/nvidia-gpu-percent", "30"), ("nvidia.com/gpumem-percentage", "30")
    for said in (dict([t9ks, hamis]), dict([hamis, t9ks])):
        assert parse(said, {}, "", Rules(dialects=("hami", "t9k"))) == share(None, percent=30)


def test_dialects_that_disagree() -> None:
    with pytest.raises(RequestError) as e:
        t9k({"T9K_GPU_PERCENT": "30", P + "memory": "4Gi"})
    assert str(e.value) == (
        "GH-104: gpu-hook.io/memory='4Gi' and T9K_GPU_PERCENT='30' disagree about memory; give one of them"
    )


def test_a_dialect_that_is_switched_off_says_nothing() -> None:
    off = Rules(dialects=())
    assert parse({"T9K_GPU_PERCENT": "lots"}, {}, "", off) is None
    request = parse({"T9K_GPU_PERCENT": "90", P + "memory": "1Gi"}, {}, "", off)
    assert request and request.gpus == (GpuRequest(memory=("mib", 1024)),)


# qGPU, gpu-manager, HAMi

TKE = "tke.cloud.tencent.com/"


def whole(count: int) -> Request:
    return Request((GpuRequest(),) * count, exclusive=True)


def shared(mib: int | None = None, percent: int | None = None, compute: int | None = None, **more: Any) -> Request:
    return made(Request, (GpuRequest(None, memory(mib, percent), compute),), **more)


@pytest.mark.parametrize(
    ("annotations", "request_"),
    [
        # gpu-manager: 256 MiB blocks, 100 is one GPU
        ({"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "16"}, shared(4096, compute=30)),
        ({"tencent.com/vcuda-memory": "1"}, shared(256, policy="best-effort")),
        ({"tencent.com/vcuda-core": "99"}, shared(percent=99, compute=99)),
        ({"tencent.com/vcuda-core": "100"}, whole(1)),
        ({"tencent.com/vcuda-core": "1600"}, whole(16)),
        (
            {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-core-limit": "60"},
            shared(percent=30, compute=30, policy="burst-share", compute_limit=60),
        ),
        # its fork: MB
        ({"nvidia.com/vcuda-core": "30", "nvidia.com/vcuda-memory": "3000"}, shared(3000, compute=30)),
        ({"nvidia.com/vcuda-core": "200"}, whole(2)),
        (
            {"nvidia.com/vcuda-core": "5", "nvidia.com/vcuda-core-limit": "5"},
            shared(percent=5, compute=5, policy="burst-share", compute_limit=5),
        ),
        # HAMi
        ({"nvidia.com/gpu": "2"}, whole(2)),
        (
            {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"},
            Request((GpuRequest(None, ("mib", 3000), 30),) * 2),
        ),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}, shared(percent=50, policy="best-effort")),
        (
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1", "nvidia.com/gpucores": "0"},
            shared(1, policy="best-effort"),
        ),
        (
            {"nvidia.com/gpumem": "1", "nvidia.com/priority": "0"},
            shared(1, policy="best-effort", priority_class="online"),
        ),
        ({"nvidia.com/gpumem": "1", "nvidia.com/priority": "1"}, shared(1, policy="best-effort")),
        ({"nvidia.com/priority": "0"}, None),
        ({"nvidia.com/use-gputype": "A100", "tencent.com/gpu-assigned": "true"}, None),
    ],
    ids=str,
)
def test_gpu_manager_and_hami(annotations: dict[str, str], request_: Request | None) -> None:
    assert parse(annotations, {}, "", RULES) == request_


@pytest.mark.parametrize(("unit", "mib"), [("MiB", 5), ("GiB", 5120)])
def test_qgpu_counts_in_the_nodes_unit(unit: str, mib: int) -> None:
    rules = Rules(dialects=("qgpu",), qgpu_memory_unit=unit)
    assert parse({TKE + "qgpu-memory": "5"}, {}, "", rules) == shared(mib, policy="best-effort")


@pytest.mark.parametrize(
    ("annotations", "request_"),
    [
        ({"qgpu-memory": "5", "qgpu-core": "30"}, shared(5120, compute=30)),
        ({"qgpu-core": "300"}, whole(3)),
        (
            {"qgpu-memory": "5", "qgpu-core": "30", "qgpu-schedule-policy": "fs"},
            shared(5120, compute=30, policy="fixed-share"),
        ),
        (
            {"qgpu-memory": "5", "qgpu-core-greedy": "10", "app-class": "offline"},
            shared(5120, policy="best-effort", priority_class="offline"),
        ),
        ({"qgpu-memory": "5", "app-class": "online"}, shared(5120, policy="best-effort", priority_class="online")),
        ({"app-class": "online"}, None),
    ],
    ids=str,
)
def test_qgpu(annotations: dict[str, str], request_: Request | None) -> None:
    rules = Rules(dialects=("qgpu",), qgpu_memory_unit="GiB")
    assert parse({TKE + key: value for key, value in annotations.items()}, {}, "", rules) == request_


NV = "nvidia.com/container.trainer.gpu-memory."


def requesting(request: Request, memory: tuple[str, int]) -> Request:
    return request.replace(gpus=tuple(gpu.replace(memory_request=memory) for gpu in request.gpus))


@pytest.mark.parametrize(
    ("annotations", "request_"),
    [
        ({"gpu-fraction": "0.25"}, shared(percent=25)),
        ({"gpu-fraction": ".5", "gpu-fraction.limit": "0.80"}, requesting(shared(percent=80), ("percent", 50))),
        ({"runai/gpu-fraction": "1.0"}, shared(percent=100)),
        ({"gpu-memory": "2000"}, shared(2000)),
        ({"gpu-memory": "2000", "gpu-memory.limit": "4000"}, requesting(shared(4000), ("mib", 2000))),
        (
            {"gpu-memory": "2000", "gpu-fraction-num-devices": "2"},
            made(Request, (GpuRequest(None, ("mib", 2000)),) * 2, policy="best-effort"),
        ),
        ({NV + "request": "8Gi", NV + "limit": "16Gi"}, requesting(shared(16384), ("mib", 8192))),
        ({NV + "request": "1000M"}, shared(954)),  # 953.67 MiB
        ({NV + "request": "1e9"}, shared(954)),
        ({NV + "limit": "8388608Ki"}, shared(8192)),
        ({NV + "limit": "8589934592000m"}, shared(8192)),
        ({NV + "limit": "1.5Gi", "nvidia.com/container.trainer.gpu-compute.mode": "time-slicing"}, shared(1536)),
        (
            {NV + "limit": "8Gi", "gpu-memory": "100"},
            requesting(shared(8192), ("mib", 100)),
        ),  # the container's own key wins over the pod's
        ({"nvidia.com/container.other.gpu-memory.limit": "8Gi"}, None),
        ({"gpu-memory": "2000", "gpu-fraction-container-name": "other"}, None),
        ({"gpu-memory": "2000", "gpu-fraction-container-name": "trainer"}, shared(2000)),
    ],
    ids=str,
)
def test_kai(annotations: dict[str, str], request_: Request | None) -> None:
    if request_ is not None and len(request_.gpus) == 1:
        request_ = request_.replace(terms=Terms(policy="best-effort"))
    assert parse(annotations, {}, "trainer", RULES) == request_


@pytest.mark.parametrize(
    ("annotations", "code"),
    [
        ({"gpu-fraction": "0.125"}, "GH-101"),
        ({"gpu-fraction": "0"}, "GH-101"),
        ({"gpu-fraction": "1.5"}, "GH-101"),
        ({"gpu-fraction": "-0.5"}, "GH-101"),
        ({"gpu-memory": "4Gi"}, "GH-101"),
        ({NV + "limit": "8GB"}, "GH-101"),
        ({NV + "limit": "0"}, "GH-101"),
        ({NV + "limit": "32Ti"}, "GH-101"),
        ({NV + "limit": "8Gi", "nvidia.com/container.trainer.gpu-compute.mode": "sm-sharing"}, "GH-101"),
        ({NV + "limit": "8Gi", NV + "request": "9Gi"}, "GH-103"),
        ({"gpu-fraction": "0.5", "gpu-fraction.limit": "0.4"}, "GH-103"),
        ({"gpu-fraction": "0.5", "gpu-memory": "2000"}, "GH-103"),
    ],
    ids=str,
)
def test_kais_values_that_are_refused(annotations: dict[str, str], code: str) -> None:
    with pytest.raises(RequestError) as e:
        parse(annotations, {}, "trainer", RULES)
    assert [p.code for p in e.value.problems] == [code]


def test_kais_words_for_a_container_where_none_has_a_name() -> None:
    assert codes({NV + "limit": "8Gi"}) == ["GH-102"]


def test_qgpu_without_a_unit_is_refused_not_guessed() -> None:
    assert codes({TKE + "qgpu-memory": "5"}, Rules(dialects=("qgpu",))) == ["GH-101"]
    assert parse({TKE + "qgpu-memory": "5"}, {}, "", RULES) is None  # off unless switched on


@pytest.mark.parametrize(
    "annotations",
    [
        {"tencent.com/vcuda-core": "150"},
        {"tencent.com/vcuda-core": "1700"},
        {"tencent.com/vcuda-core": "30%"},
        {"tencent.com/vcuda-memory": "1Gi"},
        {"tencent.com/vcuda-memory": "65537"},
        {"nvidia.com/vcuda-memory": "16777217"},
        {"nvidia.com/gpu": "all"},
        {"nvidia.com/gpumem-percentage": "101"},
        {"nvidia.com/gpucores": "101"},
        {"nvidia.com/priority": "2"},
        {TKE + "qgpu-core-greedy": "101"},
        {TKE + "qgpu-memory": "16385"},
        {TKE + "app-class": "default"},
        {TKE + "qgpu-schedule-policy": "fair"},
    ],
    ids=str,
)
def test_values_out_of_bounds(annotations: dict[str, str]) -> None:
    assert codes(annotations, Rules(dialects=dialects.NAMES, qgpu_memory_unit="GiB")) == ["GH-101"]


def test_the_largest_memory_of_each_unit_is_the_same() -> None:
    rules = Rules(dialects=dialects.NAMES, qgpu_memory_unit="GiB")
    for key, most in (
        ("tencent.com/vcuda-memory", "65536"),
        ("nvidia.com/vcuda-memory", "16777216"),
        (TKE + "qgpu-memory", "16384"),
        (P + "memory", "16Ti"),
    ):
        assert parse({key: most}, {}, "", rules) == shared(1 << 24, policy="best-effort"), key


@pytest.mark.parametrize(
    ("annotations", "code"),
    [
        ({"tencent.com/vcuda-core": "30", "nvidia.com/vcuda-core": "40"}, "GH-103"),  # one table, two forks
        ({"nvidia.com/gpumem": "3000", "nvidia.com/gpumem-percentage": "30"}, "GH-103"),
        ({"nvidia.com/gpumem": "3000", "nvidia.com/vcuda-memory": "2000"}, "GH-104"),
        ({"nvidia.com/gpucores": "30", "tencent.com/vcuda-core": "40"}, "GH-104"),
        ({"nvidia.com/gpu": "1", "tencent.com/vcuda-core": "200"}, "GH-104"),
        ({"nvidia.com/gpumem": "3000", "tencent.com/vcuda-core": "100"}, "GH-104"),
        ({"nvidia.com/gpu": "2", "NVIDIA_VISIBLE_DEVICES": "0"}, "GH-104"),
        ({"nvidia.com/gpumem": "3000", "NVIDIA_VISIBLE_DEVICES": "none"}, "GH-104"),
        ({"tencent.com/vcuda-core": "30", "tencent.com/vcuda-core-limit": "20"}, "GH-103"),
        ({"tencent.com/vcuda-core": "30", "tencent.com/vcuda-core-limit": "60", P + "policy": "fs"}, "GH-104"),
        ({"nvidia.com/gpumem": "3000", P + "exclusive": "true"}, "GH-104"),
    ],
    ids=str,
)
def test_contradictions_within_a_dialect_and_between_two(annotations: dict[str, str], code: str) -> None:
    assert codes(annotations)[0] == code


def test_each_dialect_can_be_off() -> None:
    words = {"t9k": "T9K_GPU_PERCENT", "qgpu": TKE + "qgpu-memory", "hami": "nvidia.com/gpumem"}
    words["gpu-manager"] = "tencent.com/vcuda-memory"
    for name, key in words.items():
        others = tuple(other for other in dialects.NAMES if other != name)
        assert parse({key: "5"}, {}, "", Rules(dialects=others, qgpu_memory_unit="GiB")) is None
        assert parse({key: "5"}, {}, "", Rules(dialects=(name,), qgpu_memory_unit="GiB")) is not None


# Mounts

REQUEST, VISIBLE = "/run/gpu-hook/request", "/var/run/nvidia-container-devices"


def by_mounts(*names: str, source: str = "/dev/null", container: str = "", **annotations: str) -> Request | None:
    said = {P + key.replace("__", "."): value for key, value in annotations.items()}
    return parse(said, {}, container, RULES, [(name, source) for name in names])


def refused_mounts(*names: str, source: str = "/dev/null", container: str = "", **annotations: str) -> list[str]:
    with pytest.raises(RequestError) as e:
        by_mounts(*names, source=source, container=container, **annotations)
    return [str(p) for p in e.value.problems]


def test_mounts_ask_as_annotations_do() -> None:
    assert by_mounts(f"{REQUEST}/memory=4Gi", f"{REQUEST}/compute=30") == shared(4096, compute=30)
    assert by_mounts(f"{REQUEST}/devices=0,1", f"{REQUEST}/gpus=2") == Request(
        (GpuRequest("0"), GpuRequest("1")), exclusive=True
    )


def test_a_mount_disagrees_with_an_annotation_or_wins_where_containers_have_names() -> None:
    assert refused_mounts(f"{REQUEST}/memory=4Gi", memory="2Gi") == [
        "GH-103: gpu-hook.io/memory='2Gi' and mount /run/gpu-hook/request/memory='4Gi' disagree about memory;"
        " give one of them"
    ]
    assert by_mounts(f"{REQUEST}/memory=4Gi", container="a", memory="2Gi") == shared(4096, policy="best-effort")
    assert refused_mounts(f"{REQUEST}/memory=4Gi", container="a", memory__a="2Gi")[0].startswith("GH-103")
    assert by_mounts(f"{REQUEST}/memory=4Gi", memory="4Gi") == shared(4096, policy="best-effort")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        (f"{REQUEST}/memory=4G", "GH-101"),
        (f"{REQUEST}/memory=4Gi/x", "GH-101"),
        (f"{REQUEST}/memory=", "GH-101"),
        (f"{REQUEST}/memory", "GH-102"),
        (f"{REQUEST}/memory.a=4Gi", "GH-102"),
        (f"{REQUEST}/request=[{{}}]", "GH-102"),
        (f"{REQUEST}/containers=a", "GH-102"),
        (f"{REQUEST}/=4Gi", "GH-102"),
        (REQUEST, "GH-102"),
        (f"{VISIBLE}/cdi/nvidia.com/gpu/0", "GH-101"),
        (f"{VISIBLE}/imex", "GH-101"),
        (f"{VISIBLE}/imex/0/1", "GH-101"),
        (f"{VISIBLE}/imex/all", "GH-101"),
    ],
)
def test_mounts_that_are_not_understood(name: str, code: str) -> None:
    [line] = refused_mounts(name)
    assert line.startswith(code) and "mount /" in line


def test_a_request_mount_must_be_dev_null() -> None:
    assert refused_mounts(f"{REQUEST}/memory=4Gi", source="/etc/passwd") == [
        "GH-102: 'mount /run/gpu-hook/request/memory=4Gi': what is mounted there asks for a GPU and must be /dev/null,"
        " not '/etc/passwd'"
    ]


def test_nvidias_mounts_name_gpus() -> None:
    two = Request((GpuRequest("0"), GpuRequest("GPU-a")), exclusive=True)
    assert by_mounts(f"{VISIBLE}/0", f"{VISIBLE}/GPU-a") == two
    assert by_mounts(f"{VISIBLE}/all") == Request((GpuRequest(),), every_gpu=True, exclusive=True)
    assert by_mounts(f"{VISIBLE}/void") is None
    channels = by_mounts(f"{VISIBLE}/imex/5", f"{VISIBLE}/0", f"{VISIBLE}/imex/0")
    assert channels == Request((GpuRequest("0"),), terms=Terms(imex_channels=(0, 5)), exclusive=True)
    assert by_mounts(f"{VISIBLE}/imex/5") is None
    assert by_mounts(f"{VISIBLE}/0", f"{VISIBLE}/imex/5", source="/dev/zero") is None
    assert by_mounts(f"{VISIBLE}/0", memory="1Gi") == share("0", mib=1024, visible="uuid")
    assert by_mounts(f"{VISIBLE}/0", source="/dev/zero") is None
    assert parse({}, {}, "", Rules(dialects=()), [(f"{VISIBLE}/0", "/dev/null")]) is None
    assert refused_mounts(f"{VISIBLE}/0", devices="1")[0].startswith("GH-104")


# The tables themselves


def test_every_file_is_a_named_dialect() -> None:
    files = {p.stem for p in Path(dialects.__file__).parent.glob("*.py")} - {"__init__", dialects.NATIVE}
    assert files == {name.replace("-", "_") for name in dialects.NAMES}
    assert set(Rules().dialects) == set(dialects.NAMES) - {"qgpu"}
    with pytest.raises(KeyError):
        dialects.table("nothing")


@pytest.mark.parametrize("name", [dialects.NATIVE, *dialects.NAMES])
def test_tables_are_well_formed(name: str) -> None:
    table = dialects.table(name)
    native = dialects.table(dialects.NATIVE).KEYS
    for key, (wish, reader, implied) in table.KEYS.items():
        assert wish in (*native, "memory-request", "containers") and set(implied) <= set(native), key
        assert callable(reader)
        plain = "." not in key and "/" not in key and key.islower() and not key.startswith("gpu-")
        assert (name == dialects.NATIVE) == plain
    assert set(table.ENV.values()) <= set(table.KEYS)
    for exact, rough in table.SAME:
        assert table.KEYS[exact][0] == table.KEYS[rough][0]


@pytest.mark.parametrize("name", dialects.NAMES)
def test_a_table_is_read_where_one_of_its_keys_is(name: str) -> None:
    table = dialects.table(name)
    for key in (*table.KEYS, *table.ENV):
        assert dialects.spoken([name], ["x", key]) == [name], key
    assert dialects.spoken([name], ["x", P + "memory"]) == []


def test_the_page_for_users_names_every_key() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/reference/annotations.md").read_text()
    for name in (dialects.NATIVE, *dialects.NAMES):
        for key in dialects.table(name).KEYS:
            assert f"`{key}`" in page, key
        for variable in dialects.table(name).ENV:
            assert name == dialects.NATIVE or f"`{variable}`" in page


def test_the_request_language_has_no_regular_expressions() -> None:
    core = Path(dialects.__file__).parents[1]
    for path in core.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            assert "re" not in names, path


# Zero


@pytest.mark.parametrize(
    "annotations",
    [
        *({P + "gpus": "0"}, {P + "gpus": "0", P + "class": "offline"}, {P + "memory": "1Gi", P + "gpus.a": "0"}),
        *({"nvidia.com/gpu": "0"}, {"nvidia.com/gpumem": "0"}, {"nvidia.com/gpumem-percentage": "0%"}),
        *({"tencent.com/vcuda-core": "0"}, {"tencent.com/vcuda-memory": "0", "nvidia.com/vcuda-core": "0"}),
        *({TKE + "qgpu-core": "0"}, {TKE + "qgpu-memory": "0"}, {"tensorstack.dev/nvidia-gpu-node": "0"}),
    ],
    ids=str,
)
def test_zero_asks_for_nothing(annotations: dict[str, str]) -> None:
    for unit in ("GiB", "none"):
        rules = Rules(dialects=dialects.NAMES, qgpu_memory_unit=unit)
        assert parse(annotations, {}, "a", rules) is None
        assert parse(annotations, {"NVIDIA_VISIBLE_DEVICES": "void"}, "a", rules.replace(trust_env=True)) is None


def test_no_gpu_in_the_annotations_is_no_gpu_whatever_a_trusted_image_says() -> None:
    for key in (P + "gpus", "nvidia.com/gpu"):
        assert parse({key: "0"}, {"NVIDIA_VISIBLE_DEVICES": "all"}, "", Rules(trust_env=True)) is None
    assert parse({}, {"GPU_HOOK_GPUS": "0"}, "", Rules(trust_env=True)) is None


@pytest.mark.parametrize(
    ("annotations", "code"),
    [
        ({P + "gpus": "0", P + "memory": "1Gi"}, "GH-103"),
        ({P + "gpus": "0", "T9K_GPU_PERCENT": "30"}, "GH-104"),
        ({"nvidia.com/gpu": "0", "nvidia.com/gpumem": "1024"}, "GH-103"),
        # Words that only annotations and variables have: none or no limit, nobody can tell.
        *(({P + "memory": "0"}, "GH-101"), ({P + "memory": "0%"}, "GH-101"), ({P + "compute": "0"}, "GH-101")),
        *(({"T9K_GPU_MEMORY": "0"}, "GH-101"), ({"gpu-fraction": "0"}, "GH-101"), ({"gpu-memory": "0"}, "GH-101")),
        ({"NVIDIA_GPU_MEMORY_LIMIT": "0", "NVIDIA_GPU_MEMORY_REQUEST": "0"}, "GH-101"),
    ],
    ids=str,
)
def test_zero_that_is_refused(annotations: dict[str, str], code: str) -> None:
    assert codes(annotations)[0] == code


# qGPU's several GPUs


@pytest.mark.parametrize(
    ("core", "memory_", "each"),
    [
        ("160", "60", (2, 80, 30)),  # both rows are of the document
        ("121", "31", (2, 60, 15)),
        ("200", "20", (2, 100, 10)),
        ("250", "8", (3, 83, 2)),
        ("160", "0", (2, 80, None)),
        ("160", None, (2, 80, None)),
    ],
)
def test_qgpus_core_above_100_is_of_several_gpus(
    core: str, memory_: str | None, each: tuple[int, int, int | None]
) -> None:
    rules = Rules(dialects=("qgpu",), qgpu_memory_unit="GiB")
    said = {TKE + "qgpu-core": core} | ({TKE + "qgpu-memory": memory_} if memory_ else {})
    count, compute, gib = each
    memory_each = ("mib", gib << 10) if gib else ("percent", compute)
    assert parse(said, {}, "", rules) == Request((GpuRequest(None, memory_each, compute),) * count)


def test_qgpus_whole_gpus_and_too_little_memory() -> None:
    rules = Rules(dialects=dialects.NAMES, qgpu_memory_unit="GiB")
    assert parse({TKE + "qgpu-core": "200"}, {}, "", rules) == whole(2)
    assert parse({TKE + "qgpu-core": "100", TKE + "qgpu-memory": "5"}, {}, "", rules) == whole(1)
    assert codes({TKE + "qgpu-core": "160", TKE + "qgpu-memory": "1"}, rules) == ["GH-103"]
    assert codes({TKE + "qgpu-core": "1601"}, rules) == ["GH-101"]
    assert codes({TKE + "qgpu-core": "160"}, rules.replace(profile="qgpu")) == ["GH-101"]
    two = parse({TKE + "qgpu-core": "160", P + "memory": "8Gi"}, {}, "", rules)
    assert two and two.gpus == (GpuRequest(None, ("mib", 8192), 80),) * 2  # ours is of each
