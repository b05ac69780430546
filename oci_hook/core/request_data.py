"""A request as plain data, for the event of a refusal and for `explain`; and back, for `why`."""

from oci_hook.core.request import Request
from oci_hook.core.terms import GpuRequest, Terms, data_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def as_data(request: Request) -> "dict[str, Any]":
    """The fields as JSON has them, the terms among the others."""
    data = request.fields()
    gpus, terms = data.pop("gpus"), data.pop("terms")
    return {"gpus": [gpu.fields() for gpu in gpus], **terms.data(), **data}


def from_data(data: "Any") -> Request:
    """The request that `as_data` wrote, also when JSON made lists of its tuples. Raises TypeError, KeyError, ValueError
    for what this version does not understand."""
    fields = {name: _tuples(value) for name, value in dict(data).items() if name != "gpus"}
    gpus = [GpuRequest(**{name: _tuples(value) for name, value in gpu.items()}) for gpu in data["gpus"]]
    terms = Terms(**{field: fields.pop(data_name(field)) for field in Terms.FIELDS})
    return Request(tuple(gpus), terms, **fields)


def _tuples(value: "Any") -> "Any":
    return tuple(value) if isinstance(value, list) else value
