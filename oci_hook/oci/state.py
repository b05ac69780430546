"""The container's state document, which a runtime gives to a hook on standard input (OCI runtime-spec, runtime.md)."""

from oci_hook.core.value import Value
from oci_hook.errors import GhError, refuse
from oci_hook.oci import fastjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

LIMIT = 16 << 20  # bytes; core/collect.py MAX_ALL characters of annotations, which Go writes as up to 6 bytes each
PID_MAX = 1 << 22  # proc_sys_kernel(5), pid_max's own limit


class State(Value):
    """pid: of the container's init, in the host's pid namespace; 0 when there is none (poststop). bundle: absolute."""

    id: str
    pid: int
    bundle: str
    status: str
    annotations: dict[str, str]


def read(stdin: "BinaryIO") -> State:
    """Read and check a state document of at most LIMIT bytes. Raises ApplyError GH-406."""
    data = stdin.read(LIMIT + 1)
    if len(data) > LIMIT:
        while stdin.read(LIMIT):  # or the runtime may die of SIGPIPE and say nothing of the refusal
            pass
        raise refuse("GH-406", f"the container's state is larger than {LIMIT} bytes; give it shorter annotations")
    try:
        document = fastjson.loads(data)
    except ValueError as e:
        raise _invalid(f"is not JSON: {e}") from None
    if not isinstance(document, dict):
        raise _invalid("is not a JSON object")
    pid = document.get("pid", 0)
    if type(pid) is not int or not 0 <= pid <= PID_MAX:
        raise _invalid(f"has pid {pid!r:.20}")
    bundle = _text(document, "bundle")
    if not bundle.startswith("/"):
        raise _invalid(f"has the bundle {bundle!r:.40}, which is not an absolute path")
    return State(
        id=_text(document, "id"),
        pid=pid,
        bundle=bundle,
        status=_text(document, "status"),
        annotations=_annotations(document),
    )


def _text(document: "dict[str, Any]", key: str) -> str:
    value = document.get(key)
    if not isinstance(value, str) or not value or "\0" in value:
        raise _invalid(f"has {key} {value!r:.40}, which is not a text")
    return value


def _annotations(document: "dict[str, Any]") -> dict[str, str]:
    value = document.get("annotations")
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise _invalid("has annotations that are not an object of texts")
    return value


def _invalid(what: str) -> GhError:
    return refuse("GH-406", f"the state on standard input {what}; only an OCI runtime calls this program")
