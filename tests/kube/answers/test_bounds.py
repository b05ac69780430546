"""Input of callers with a token, and of untrusted manifests, is bounded and cannot change others' pods."""

from typing import Any

import pytest

from oci_hook.core.rules import Rules
from oci_hook.errors import RequestError
from oci_hook.kube.answers import extender, manifest
from oci_hook.kube.pod import mutate
from tests.kube.cluster_objects import cluster, node, pod


@pytest.mark.parametrize("names", ([["a"]], [{}], "a", {"a": 1}, [1]))
def test_names_that_are_none_leave_the_reservation(names: Any) -> None:
    state = cluster(node("a", 1000))
    waits = pod("p", memory=10)
    state.apply_pod(waits)
    assert extender.filter({"Pod": waits, "NodeNames": ["a"]}, state, 0.0)["NodeNames"] == ["a"]
    with pytest.raises(ValueError, match="no list of names"):
        extender.filter({"Pod": waits, "NodeNames": names}, state, 0.0)
    assert list(state.reservations) == ["u-p"]


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)
MERGES = "m0: &m0 {a: b}\n" + "".join(f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 10)}]}}\n" for n in range(1, 9))
JOB = "kind: Job\nmetadata: {name: %s}\nspec: {template: {spec: {containers: [{name: c}]}}}\n"


@pytest.mark.parametrize(
    "text",
    (
        BOMB + JOB % "*a8",
        BOMB + "kind: *a8\nspec: {}\n",
        MERGES + JOB % "x",
        f"s: &s {'x' * 500_000}\n" + JOB % f"[{', '.join(['*s'] * 5000)}]",
        "kind: List\nitems: &l [{kind: List, items: *l}]\n",
    ),
)
def test_aliases_that_unfold_without_end_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match="GH-107"):
        manifest.roles(text, mutate.WebhookOptions(Rules(), ""))


def test_aliases_of_a_usual_number_are_read() -> None:
    text = "kind: Job\nmetadata: &m {name: j, labels: {a: &s b, c: *s}}\nspec: {template: {metadata: {<<: *m}, spec: {}}}\n"
    assert [one.name for one in manifest.roles(text, mutate.WebhookOptions(Rules(), ""))] == ["j"]
