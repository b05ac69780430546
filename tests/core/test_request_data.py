"""A request that is written as plain data is read back the same; other data is refused."""

import json

import pytest

from oci_hook.core.request import Request
from oci_hook.core.request_data import as_data, from_data
from oci_hook.core.terms import GpuRequest, Terms

TERMS = Terms("fixed-share", "online", 1500, ("compute", "video"), (0, 7))
FULL = Request((GpuRequest("0", ("mib", 5), 10), GpuRequest()), TERMS, False, 80, False, "spread", ("0", "GPU-a"))


@pytest.mark.parametrize("request_", [FULL, Request(()), Request((GpuRequest(),), every_gpu=True, exclusive=True)])
def test_written_and_read(request_: Request) -> None:
    assert from_data(as_data(request_)) == from_data(json.loads(json.dumps(as_data(request_)))) == request_


def test_the_terms_have_their_annotations_names() -> None:
    assert as_data(FULL)["class"] == "online" and as_data(FULL)["preempt_tolerance_us"] == 1500


@pytest.mark.parametrize("data", [{}, None, [], "x", {"gpus": [{}]}, {**as_data(FULL), "colour": 1}])
def test_data_of_another_version(data: object) -> None:
    with pytest.raises((TypeError, KeyError, ValueError)):
        from_data(data)
