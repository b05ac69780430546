"""Other systems' words: each row of each table, and two dialects beside each other."""

import ast
from pathlib import Path

import pytest

from oci_hook.core import dialects
from oci_hook.core.request import CardRequest, Request, parse
from oci_hook.core.rules import Rules
from oci_hook.errors import RequestError

P = "gpu-hook.io/"
RULES = Rules()


def t9k(annotations: dict[str, str]) -> Request | None:
    return parse(annotations, {}, "", RULES)


def codes(annotations: dict[str, str], rules: Rules = RULES) -> list[str]:
    with pytest.raises(RequestError) as e:
        parse(annotations, {}, "", rules)
    return [p.code for p in e.value.problems]


def share(device: str | None, mib: int | None = None, percent: int | None = None) -> Request:
    return Request((CardRequest(device, mib, percent),), policy="best-effort")


@pytest.mark.parametrize(
    ("annotations", "request_"),
    [
        ({"NVIDIA_VISIBLE_DEVICES": "0", "T9K_GPU_PERCENT": "30"}, share("0", percent=30)),
        ({"NVIDIA_VISIBLE_DEVICES": "0", "T9K_GPU_MEMORY": "4096"}, share("0", mib=4096)),
        ({"T9K_GPU_MEMORY": "4096"}, share(None, mib=4096)),
        ({"tensorstack.dev/nvidia-gpu-percent": "25"}, share(None, percent=25)),
        ({"NVIDIA_VISIBLE_DEVICES": "2"}, Request((CardRequest("2"),), exclusive=True)),
        ({"tensorstack.dev/nvidia-gpu": "2"}, Request((CardRequest(), CardRequest()), exclusive=True)),
        ({"tensorstack.dev/nvidia-gpu-node": "1"}, Request((CardRequest(),), every_card=True, exclusive=True)),
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
        {"tensorstack.dev/nvidia-gpu": "0"},
        {"tensorstack.dev/nvidia-gpu": "all"},
        {"tensorstack.dev/nvidia-gpu-node": "2"},
        {"NVIDIA_VISIBLE_DEVICES": "MIG-aaaa"},
        {"NVIDIA_VISIBLE_DEVICES": "0:1"},
        {"NVIDIA_VISIBLE_DEVICES": "nvidia.com/gpu=0"},
    ],
    ids=str,
)
def test_t9k_values_out_of_bounds(annotations: dict[str, str]) -> None:
    assert codes(annotations) == ["GH-101"]


@pytest.mark.parametrize(
    "annotations",
    [
        {"T9K_GPU_PERCENT": "30", "T9K_GPU_MEMORY": "4096"},
        {"tensorstack.dev/nvidia-gpu": "1", "tensorstack.dev/nvidia-gpu-percent": "30"},
        {"tensorstack.dev/nvidia-gpu": "2", "tensorstack.dev/nvidia-gpu-node": "1"},
        {"tensorstack.dev/nvidia-gpu": "2", "NVIDIA_VISIBLE_DEVICES": "0"},
    ],
    ids=str,
)
def test_t9k_contradicts_itself(annotations: dict[str, str]) -> None:
    assert codes(annotations) == ["GH-103"]


def test_in_a_trusted_environment_the_schedulers_pair_is_one_share() -> None:
    env = {"NVIDIA_VISIBLE_DEVICES": "0", "T9K_GPU_PERCENT": "17", "T9K_GPU_MEMORY": "4096"}
    request = parse({}, env, "", Rules(trust_env=True))
    assert request and request.cards == (CardRequest("0", memory_mib=4096),)


def test_dialects_add_up_where_they_speak_of_different_things() -> None:
    request = t9k({"NVIDIA_VISIBLE_DEVICES": "1", P + "memory": "1Gi", P + "compute": "20"})
    assert request == Request((CardRequest("1", 1024, None, 20),))


def test_dialects_may_say_the_same() -> None:
    assert t9k({"T9K_GPU_PERCENT": "30", P + "memory": "30%"}) == share(None, percent=30)


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
    assert request and request.cards == (CardRequest(memory_mib=1024),)


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
        assert wish in native and set(implied) <= set(native), key
        assert callable(reader)
        assert (name == dialects.NATIVE) == ("." not in key and "/" not in key and key.islower())
    assert set(table.ENV.values()) <= set(table.KEYS)
    for exact, rough in table.SAME:
        assert table.KEYS[exact][0] == table.KEYS[rough][0]


def test_the_page_for_users_names_every_key() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/annotations.md").read_text()
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
