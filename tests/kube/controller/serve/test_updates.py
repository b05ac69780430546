"""Updates of pods keep the decision and the request."""

import pytest

from oci_hook.errors import ClusterError
from oci_hook.kube.controller.serve.service import check_update
from oci_hook.kube.formats import names


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"gpu-hook.io/memory": "1Mi"}, {"gpu-hook.io/memory": "16Gi"}),
        ({}, {"gpu-hook.io/memory": "16Gi"}),  # no sum at all
        ({"gpu-hook.io/memory": "1Mi"}, {"gpu-hook.io/memory": "1Mi", "gpu-hook.io/gpus": "8"}),
        ({"gpu-hook.io/memory": "1Mi"}, {"gpu-hook.io/memory": "1Mi", "gpu-hook.io/node": "exclusive"}),
        ({"gpu-hook.io/memory": "100%"}, {"gpu-hook.io/exclusive": "true"}),
    ],
)
def test_a_pod_that_waits_does_not_ask_for_more_than_its_quota_counted(
    before: dict[str, str], after: dict[str, str]
) -> None:
    with pytest.raises(ClusterError, match="GH-605"):
        check_update({"metadata": {"annotations": before}}, {"metadata": {"annotations": after}})
    check_update({"metadata": {"annotations": before}}, {"metadata": {"annotations": {**before, "other": "x"}}})


def test_an_update_may_change_anything_but_what_we_decided() -> None:
    old = {"metadata": {"annotations": {names.ALLOC: "x", "a": "1"}}}
    check_update(old, {"metadata": {"annotations": {names.ALLOC: "x", "a": "2", "b": "3"}}})
    for notes in ({names.ALLOC: "y"}, {}, None):
        with pytest.raises(ClusterError, match="GH-605"):
            check_update(old, {"metadata": {"annotations": notes}})
    with pytest.raises(ClusterError, match="GH-605"):
        check_update({"metadata": {}}, old)
