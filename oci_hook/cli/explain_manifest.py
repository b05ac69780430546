"""`gpu-hook explain --manifest`: shows how many pods of a workload would have room together."""

from collections.abc import Callable

from oci_hook.cli import output
from oci_hook.cli.cluster_objects import Objects, state_of
from oci_hook.cli.explain_pod import by_class
from oci_hook.core import dialects
from oci_hook.core.rules import Rules
from oci_hook.errors import Problem, refuse
from oci_hook.kube.answers import gang, manifest
from oci_hook.kube.answers.claims import ClaimObjects
from oci_hook.kube.formats import names
from oci_hook.kube.pod import mutate
from oci_hook.kube.pod.hosts import Hosts

QGPU = Problem("GH-108", "qGPU's requests are not read here, so its pods count as pods without a GPU")
SHOWN = 8  # nodes in a role's line


def report(path: str, objects: Objects, read_claims: Callable[[], ClaimObjects] = ClaimObjects) -> output.Report:
    """Raises RequestError GH-107."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(manifest.MAX_SIZE + 1)
    except UnicodeDecodeError as e:
        raise refuse("GH-107", f"{path}: not UTF-8 at byte {e.start}") from None
    except OSError as e:
        raise refuse("GH-107", f"{path}: {e.strerror}") from None
    known = tuple(name for name in dialects.NAMES if name != "qgpu")  # its memory unit is an option of the controller
    left_out: set[str] = set()
    modes = frozenset((node["metadata"].get("labels") or {}).get(names.T9K_MODE, "") for node in objects[0]) - {""}
    roles = manifest.roles(text, mutate.WebhookOptions(Rules(dialects=known), modes=modes), left_out=left_out)
    answer = gang.dry_run(state_of(*objects), roles, hosts=Hosts(*objects, by_class(read_claims)))
    data = {**gang.as_data(answer), "left_out": sorted(left_out)}
    warnings = (QGPU,) if "tencent.com/qgpu" in text else ()
    shown = [*lines(answer), *([f"not counted: {', '.join(sorted(left_out))}"] if left_out else [])]
    return output.Report(data, list(map(output.printable, shown)), warnings, 0 if answer.all_fit else 1)


def lines(answer: gang.DryRunAnswer) -> list[str]:
    total, fits = sum(one.count for one in answer.roles), sum(one.fits for one in answer.roles)
    said = "all have room at once" if answer.all_fit else f"{fits} of {total} have room at once"
    shown = [f"{output.count(total, 'pod')}: {said}"]
    for one in answer.roles:
        where = [f"{count} on {node}" for node, count in one.placed if node]
        if len(where) > SHOWN:
            where = [*where[:SHOWN], f"{len(where) - SHOWN} more nodes"]
        text = f"{one.name}: {one.fits} of {one.count} have room"
        shown.append(text + (f": {', '.join(where)}" if where else ""))
        if one.why is not None:
            shown.append(f"  {one.why}")
    return list(map(output.printable, shown))
