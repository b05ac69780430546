"""NVIDIA_REQUIRE_*: the grammar, what is met, and how the words of NVIDIA's toolkit ask."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_hook.core import requirements
from oci_hook.core.allocate import Allocation, Refusal, allocate
from oci_hook.core.inventory import Gpu, Inventory
from oci_hook.core.request import Request, parse
from oci_hook.core.rules import Rules
from oci_hook.errors import RequestError

KNOWN = {"cuda": "12.4", "driver": "550.163.01", "arch": "8.6", "brand": "tesla"}
# Of an image for CUDA 12.4, as NVIDIA builds them.
IMAGE = "cuda>=12.4 brand=tesla,driver>=470,driver<471 brand=unknown,driver>=535,driver<536"
P = "gpu-hook.io/"


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("", True),
        (IMAGE, True),
        ("cuda>=12.4", True),
        ("cuda>=12.4.1", False),
        ("cuda>12.4", False),
        ("cuda=12.4.0", True),
        ("cuda!=12.4", False),
        ("cuda<13", True),
        ("cuda<=12.4", True),
        ("driver>=550.90.07", True),
        ("driver>=550.163.02", False),
        ("arch>=8.0,arch<9.0", True),
        ("arch>=10.0", False),
        ("brand=tesla", True),
        ("brand!=tesla", False),
        ("brand=TESLA", True),
        ("cuda>=13 driver>=560 arch>=8.6", True),
        ("cuda>=13,driver>=500", False),
    ],
)
def test_what_is_met(text: str, met: bool) -> None:
    assert (requirements.unmet(text, KNOWN) == "") == met
    assert requirements.unmet(text, {}) == ""  # nothing is known of the driver


def test_the_failing_term_is_named() -> None:
    assert requirements.unmet("cuda>=13.1,arch>=8.0", KNOWN) == "cuda>=13.1 is required, here is cuda 12.4"
    assert requirements.unmet("arch>=7.0,driver>=560", KNOWN) == "driver>=560 is required, here is driver 550.163.01"


@pytest.mark.parametrize(
    "text",
    ["cuda", "cuda>=", "cuda>=x", "cuda>=1..2", "cuda>=1.2.3.4.5.6.7.8.9", "sm>=8", ",", "cuda>=1,", "brand>=a"]
    + ["cuda=>12", "cuda==12", "cuda>=" + "9" * 10, "cuda>=-1", "c" * 5000],
)
def test_what_is_no_requirement(text: str) -> None:
    with pytest.raises(ValueError):
        requirements.alternatives(text)


@given(st.text(max_size=60))
def test_anything_is_read_or_refused(text: str) -> None:
    try:
        requirements.alternatives(text)
    except ValueError:
        return
    requirements.unmet(text, KNOWN)


def node(*archs: str, cuda: str = "12.4") -> Inventory:
    gpus = tuple(Gpu(f"GPU-{i}", i, i, 8192, arch=arch, brand="tesla") for i, arch in enumerate(archs))
    return Inventory("b", "550.163.01", "/", False, gpus, (), (), "", "", cuda_version=cuda)


def asked(annotations: dict[str, str], env: dict[str, str] | None = None, trust: bool = False) -> Request | None:
    return parse(annotations, env or {}, "", Rules(trust_env=trust))


def test_the_gpu_that_meets_it_is_chosen() -> None:
    request = asked({P + "memory": "1Gi", "NVIDIA_REQUIRE_ARCH": "arch>=9.0"})
    assert request
    found = allocate(request, node("8.0", "9.0"), (), Rules())
    assert isinstance(found, Allocation) and found.shares[0].uuid == "GPU-1"
    refused = allocate(request, node("8.0"), (), Rules())
    assert isinstance(refused, Refusal)
    assert str(refused.problems[0]) == (
        "GH-205: the image's requirement is not met: GPU 0 GPU-0 does not meet NVIDIA_REQUIRE_ARCH: arch>=9.0 is required,"
        " here is arch 8.0; use another node, image or driver"
    )


def test_each_variable_must_hold() -> None:
    both = {P + "memory": "1Gi", "NVIDIA_REQUIRE_CUDA": "cuda>=12", "NVIDIA_REQUIRE_X": "driver<500"}
    request = asked(both)
    assert request and len(request.required) == 2
    assert isinstance(allocate(request, node("8.0"), (), Rules()), Refusal)
    for off in ("true", "1", "T"):
        request = asked({**both, "NVIDIA_DISABLE_REQUIRE": off})
        assert request and request.required == ()
    for on in ("false", "0", "yes", ""):
        request = asked({**both, "NVIDIA_DISABLE_REQUIRE": on})
        assert request and len(request.required) == 2
    request = asked({**both, "NVIDIA_REQUIRE_X": "cuda>=1", "NVIDIA_REQUIRE_JETPACK": "nonsense"})
    assert request and isinstance(allocate(request, node("8.0"), (), Rules()), Allocation)


def test_the_environment_requires_only_where_it_is_trusted() -> None:
    env = {
        "NVIDIA_REQUIRE_CUDA": "cuda>=13",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,graphics",
        "NVIDIA_VISIBLE_DEVICES": "all",
    }
    ask = {P + "memory": "1Gi"}
    plain, trusted = asked(ask, env), asked(ask, env, trust=True)
    assert plain and plain.required == () and plain.terms.capabilities == ("compute", "utility")
    assert (
        trusted and trusted.required == ("NVIDIA_REQUIRE_CUDA=cuda>=13",) and trusted.terms.capabilities == ("compute",)
    )
    assert trusted.gpus[0].memory == ("mib", 1024)
    broken = asked(ask, {"NVIDIA_REQUIRE_CUDA": "nonsense"}, trust=True)  # not this container's own words
    assert broken and broken.required == ()
    with pytest.raises(RequestError, match="GH-101: env NVIDIA_REQUIRE_CUDA"):
        asked({}, {**env, "NVIDIA_REQUIRE_CUDA": "nonsense"}, trust=True)


@pytest.mark.parametrize(
    ("words", "share", "whole"),
    [
        (
            "all",
            ("compute", "utility", "video"),
            ("compute", "utility", "video", "graphics", "display", "ngx", "compat32"),
        ),
        ("compute,graphics", ("compute",), ("compute", "graphics")),
        ("", ("compute", "utility"), ("compute", "utility")),
    ],
)
def test_capabilities_are_bounded_by_what_a_share_may_have(words: str, share: tuple[str], whole: tuple[str]) -> None:
    capabilities = {"NVIDIA_DRIVER_CAPABILITIES": words}
    one, all_of_it = asked({P + "memory": "1Gi", **capabilities}), asked({P + "gpus": "1", **capabilities})
    assert one and one.terms.capabilities == share
    assert all_of_it and all_of_it.terms.capabilities == whole


PAIR = {"NVIDIA_GPU_MEMORY_REQUEST": "1", "NVIDIA_GPU_MEMORY_LIMIT": "4096"}


@pytest.mark.parametrize(
    ("annotations", "code"),
    [
        ({P + "memory": "1Gi", "NVIDIA_DRIVER_CAPABILITIES": "graphics"}, "GH-106"),
        ({P + "memory": "1Gi", "NVIDIA_DRIVER_CAPABILITIES": "nonsense"}, "GH-101"),
        ({"NVIDIA_GPU_MEMORY_LIMIT": "4096"}, "GH-103"),
        ({"NVIDIA_GPU_MEMORY_REQUEST": "4096"}, "GH-103"),
        ({"NVIDIA_GPU_MEMORY_REQUEST": "4097", "NVIDIA_GPU_MEMORY_LIMIT": "4096"}, "GH-103"),
        ({"NVIDIA_GPU_MEMORY_LIMITS": "4096"}, "GH-103"),
        ({"NVIDIA_GPU_MEMORY_REQUESTS": "4096"}, "GH-103"),
        ({"NVIDIA_GPU_MEMORY_REQUESTS": "4097", "NVIDIA_GPU_MEMORY_LIMITS": "4096"}, "GH-103"),
        ({"NVIDIA_GPU_MEMORY_REQUESTS": "4097", "NVIDIA_GPU_MEMORY_LIMIT": "4096"}, "GH-103"),
        ({**PAIR, "NVIDIA_GPU_MEMORY_LIMITS": "8192"}, "GH-103"),
        ({**PAIR, "NVIDIA_GPU_MEMORY_REQUESTS": "2"}, "GH-103"),
        *(
            ({**PAIR, "NVIDIA_GPU_MEMORY_LIMIT": words}, "GH-101")
            for words in ("", "-1", "1e3", "4096MiB", "4.5", "0x1000", "٤")
        ),
        ({"NVIDIA_GPU_MEMORY_REQUEST": "0", "NVIDIA_GPU_MEMORY_LIMIT": "4096"}, "GH-101"),
        ({"NVIDIA_GPU_MEMORY_REQUEST": "1", "NVIDIA_GPU_MEMORY_LIMIT": "4Gi"}, "GH-101"),
        ({"NVIDIA_GPU_MEMORY_REQUEST": "1", "NVIDIA_GPU_MEMORY_LIMIT": "4096", P + "memory": "1Gi"}, "GH-104"),
    ],
    ids=str,
)
def test_what_is_refused(annotations: dict[str, str], code: str) -> None:
    with pytest.raises(RequestError) as e:
        asked(annotations)
    assert [p.code for p in e.value.problems] == [code] and len(str(e.value)) < 300


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("request_", ["1", "4096"])
@pytest.mark.parametrize("ends", [("", ""), ("S", "S"), ("S", ""), ("", "S")])
def test_the_toolkits_memory_limits(request_: str, trust: bool, ends: tuple[str, str]) -> None:
    """Its hook reads the names with an S, too."""
    words = {f"NVIDIA_GPU_MEMORY_REQUEST{ends[0]}": request_, f"NVIDIA_GPU_MEMORY_LIMIT{ends[1]}": "4096"}
    found = asked({}, words, trust=True) if trust else asked(words)
    assert found and found.gpus[0].memory == ("mib", 4096)
    assert found.gpus[0].memory_request == (None if request_ == "4096" else ("mib", 1))
    assert asked({}, words) is None, "without trust, the environment asks for nothing"


@pytest.mark.parametrize(("name", "device"), [("0", "0"), ("GPU-a", "GPU-a"), ("all", None)])
@pytest.mark.parametrize("kind", ["runtime.nvidia.com/gpu", "nvidia.com/gpu"])
def test_cdi_names_of_devices(kind: str, name: str, device: str | None) -> None:
    found = asked({"NVIDIA_VISIBLE_DEVICES": f"{kind}={name}"})
    assert found and found.gpus[0].device == device and found.every_gpu == (device is None)


def test_images_from_before_nvidia_require_cuda() -> None:
    """CUDA_VERSION alone: every GPU, all capabilities, and that CUDA; only where the environment is trusted."""
    old = asked({}, {"CUDA_VERSION": "8.0.61"}, trust=True)
    assert (
        old and old.every_gpu and "graphics" in old.terms.capabilities and old.required == ("CUDA_VERSION=cuda>=8.0",)
    )
    assert asked({}, {"CUDA_VERSION": "8.0.61"}) is None
    assert asked({}, {"CUDA_VERSION": "12.4", "NVIDIA_REQUIRE_CUDA": "cuda>=12.4"}, trust=True) is None
    one = asked({}, {"CUDA_VERSION": "8.0.61", "NVIDIA_VISIBLE_DEVICES": "0"}, trust=True)
    assert one and [gpu.device for gpu in one.gpus] == ["0"]
    share = asked({P + "memory": "1Gi"}, {"CUDA_VERSION": "8.0.61"}, trust=True)
    assert share and share.terms.capabilities == ("compute", "utility", "video") and not share.every_gpu
