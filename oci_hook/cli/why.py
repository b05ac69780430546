"""`gpu-hook why`: explains why a container was refused or is slow, with figures and the smallest change that would help.
With --cluster it proposes moves that make room in a cluster."""

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import click

from oci_hook.cli import named, node_now, output
from oci_hook.cli.explain import keys_without_prefix, pairs
from oci_hook.config import settings as node_settings
from oci_hook.core.allocate import NOBODY, Refusal, allocate
from oci_hook.core.grant import Identity
from oci_hook.core.request import Request, parse
from oci_hook.core.request_data import from_data
from oci_hook.core.suggest import changes
from oci_hook.core.terms import CLASS_NUMBERS, compute_of
from oci_hook.engines import unshared
from oci_hook.errors import GhError, RequestError, refuse
from oci_hook.ledger import admit, slot_files, store
from oci_hook.ledger import inventory as cache
from oci_hook.ledger.admit import MIN_PREFIX
from oci_hook.ledger.events import short
from oci_hook.observe import engine_names
from oci_hook.observe.event_log import Follower
from oci_hook.observe.stopped import by_agent
from oci_hook.oci import request_mounts

NEARLY_FULL = 0.95  # of the memory limit
WAITS = {  # by the gate's mode: what the container's launches do
    "rotate": "take turns with those of other containers that want the GPU",
    "frozen": "wait for a container of a higher class, or until the container is resumed",
    "capped": "wait because the container has used up its compute ceiling",
    "drain": "wait until work of a lower class has left the GPU",
}


@click.command()
@click.argument("container", default="", shell_complete=named.complete)
@click.option("--annotation", "-a", multiple=True, metavar="K=V", help="Ask about a container with this annotation.")
@click.option("--cluster", is_flag=True, help="Propose moves of the cluster's pods instead.")
@click.option("--pod", default="", metavar="NAMESPACE/NAME", help="With --cluster: make room for this waiting pod.")
@click.option("--defrag", is_flag=True, help="With --cluster: free as many GPUs as possible.")
@click.option(
    "--moves", type=click.IntRange(0, 1000), metavar="N", help="With --cluster: the most moves. [default: 20]"
)
@output.cluster_options("--cluster")
@output.answers
def why(
    prefix: str,
    container: str,
    annotation: tuple[str, ...],
    cluster: bool,
    pod: str,
    defrag: bool,
    moves: int | None,
    dump: str | None,
    kubeconfig: str | None,
) -> output.Report:
    """Explain why CONTAINER was refused or is slow, and what would help.

    CONTAINER is an id, the beginning of an id, or a name; for one of docker or podman that has no share, this says why. To ask
    about a container that does not exist yet, describe it by its annotations.

    With --cluster: proposes a few pods to delete, in order, and the places for their replacements, so that a waiting pod
    has room or GPUs become free. Changes nothing. A pod is never moved if no owner would recreate it, if it has whole GPUs
    or nodes, ResourceClaims, host ports or volumes that may be bound to nodes, or if a PodDisruptionBudget protects it.
    `explain --pod` shows each node's figures. Exit status 1: no moves give the pod room.
    """
    if cluster or pod or defrag or moves is not None or dump or kubeconfig:
        if not cluster or container or annotation or bool(pod) == defrag:
            raise click.UsageError("--cluster takes --pod or --defrag, and no container")
        from oci_hook.cli import cluster_objects, why_cluster  # the cluster's part: not for every use
        from oci_hook.kube.moves.defrag import MOST_MOVES

        most = MOST_MOVES if moves is None else moves
        objects = cluster_objects.read_with_budgets(dump, kubeconfig)
        return why_cluster.report(pod, most, *objects, lambda: cluster_objects.claims(dump, kubeconfig))
    if bool(container) == bool(annotation):
        raise click.UsageError("name a CONTAINER, or describe one by --annotation; not both")
    settings = node_settings.load(prefix)
    if annotation:
        asked = pairs("--annotation", annotation)
        if bare := keys_without_prefix(asked):
            raise RequestError(*bare)
        request = parse(asked, {}, "", settings.rules, (), request_mounts.decode)
        if request is None:
            return output.Report({"fits": True, "changes": []}, ["these annotations request no GPU"])
        return room(settings, request, [])
    node = node_now.node(settings)
    living = [
        c for c in node["containers"] if matches(c["id"], "/".join((c["namespace"], c["pod"], c["name"])), container)
    ]
    living = [c for c in living if c["id"] == container] or living
    if len(living) > 1:
        ids = ", ".join(named.title(c) for c in living[:5])
        raise refuse("GH-410", f"{len(living)} containers match {container}: {ids}; name one by its id")
    log = Follower(settings.state_dir, old=True).read()
    if living:
        return running(
            living[0], node, log, node["agent"]["state"] != "none" or node_now.agent_runs(settings), contexts(settings)
        )
    try:
        named.check_may_read(settings)
    except GhError:  # so it is the agent that said which containers live
        return past(settings, container, node_now.told(settings), ["(by the agent; root sees more)"])
    if too_short := admit.too_short(store.snapshot(settings.state_dir), container):
        raise refuse("GH-410", too_short)
    return past(settings, container, log)


def matches(id: str, name: str, container: str) -> bool:
    parts = name.split("/")
    return container in (id, name, name.strip("/"), parts[-1]) or (
        len(container) >= MIN_PREFIX and id.startswith(container)
    )


def fold_lines(lines: list[str]) -> list[str]:
    """Printable, and wrapped for the terminal."""
    safe = [output.printable(text) if text else "" for text in lines]
    return [part for text in safe for part in output.folded(text, output.columns())]


# A container that does not run

ENDED = {
    "ended": "ended at {}",
    "granted": "got its share at {}, and has ended since",
    "released": "lost its share at {} by `gpu-hook release --force`; what of it still runs is unaccounted",
}


def past(
    settings: node_settings.Settings, container: str, log: list[dict[str, Any]], end: Sequence[str] = ()
) -> output.Report:
    """A container that was refused or has ended, by the events about it. end: further lines. Raises GH-410 if there are none."""
    about = [e for e in log if e["event"] in ("granted", "refused", "ended", "released")]
    ids = {*engine_names.ids_of(container), short(container)}
    found = [e for e in about if e.get("id") in ids or matches(str(e.get("id")), str(e.get("name")), container)]
    known = None if found else unshared.find(container)
    if known:  # a name that no event has
        found = [e for e in about if e.get("id") in (known.id, short(known.id))]
    if known and not found:
        why = unshared.reasons(known, settings.rules)
        lines = [
            f"{container} ({known.engine}, {output.short(known.id)}, {known.state}) has no share:",
            *(f"  {w}" for w in why),
        ]
        return output.Report({"id": known.id, "state": "without a share", "reasons": why}, fold_lines(lines))
    if not found:
        none = (
            "the last events that the agent tells are of others"
            if end
            else "no event has this name or id; without an agent no names of containers that ended are kept, but `gpu-hook"
            " events` has their ids"
        )
        newer = "; ".join(unnamed(log, 0))
        raise refuse("GH-410", f"no container {container} holds a share, and {none}" + (newer and f"; {newer}"))
    if len(several := different(found, container, ids)) > 1:
        which = ", ".join(f"{e['name']} ({id})" if e.get("name") else id for id, e in several[-5:])
        raise refuse(
            "GH-410", f"{len(several)} containers that do not run match {container}: {which}; name one by its id"
        )
    last = found[-1]
    if not matches(str(last.get("id")), "", container):  # by a name, which another container may have had since
        end = [*unnamed(log, last["at"]), *end]
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last["at"]))
    if last["event"] != "refused":
        ended = ENDED[last["event"]].format(when)
        stopped = by_agent(log, str(last.get("id")))
        had = [
            f"  {time.strftime('%H:%M:%S', time.localtime(e['at']))} {e['event']}: {node_now.words(e)}"
            for e in life(log, last)
        ]
        lines = [f"{named_event(last, container)} {ended}", *had, *filter(None, [stopped]), *end]
        state = "released" if last["event"] == "released" else "ended"
        return output.Report({"id": last.get("id"), "state": state, "stopped_by_agent": stopped}, fold_lines(lines))
    messages = last.get("messages") or [node_now.words(last)]
    lines = [f"{named_event(last, container)} was refused at {when}:", *(f"  {text}" for text in messages), *end]
    lines = [output.printable(text) for text in lines]
    request = request_of(last.get("request"))
    if request is None:
        return output.Report({"id": last.get("id"), "state": "refused", "messages": messages}, lines)
    return room(settings, request, lines, identity_of(last))


def named_event(event: dict[str, Any], container: str) -> str:
    """The container of an event as people know it. container: how the user called it."""
    id = str(event.get("id") or "")
    name = str(event.get("name") or "")
    if name in ("", short(id)) and not matches(id, "", short(container)):
        name = container
    return named.title({"id": id, "namespace": "", "pod": "", "name": name})


def different(found: list[dict[str, Any]], container: str, ids: set[str]) -> list[tuple[str, dict[str, Any]]]:
    """The containers that may be meant, by short id with their last event: of those that had a name one after the other, the last
    one. ids: which engines know by this name."""
    last = {short(str(e.get("id"))): e for e in found}
    if whole := [e for e in found if e.get("id") in (container, short(container))]:
        return [(short(container), whole[-1])]
    by_name = {e["name"]: id for id, e in last.items() if e.get("name") and matches("", str(e["name"]), container)}
    known = {short(id) for id in ids} & set(last)
    by_id = {id for id, e in last.items() if matches(str(e.get("id")), "", container)}
    chosen = {short(str(found[-1].get("id"))), *known, *by_name.values(), *by_id}
    return [(id, e) for id, e in last.items() if id in chosen]


def unnamed(log: list[dict[str, Any]], since: float) -> list[str]:
    """A line about the last refusal after this Unix time, if nobody knows that container's name: it may be the one that is meant."""
    last = next((e for e in reversed(log) if e["event"] == "refused" and e["at"] > since), None)
    if last is None or last.get("name") not in (None, "", short(str(last.get("id")))):
        return []
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last["at"]))
    code = str((last.get("messages") or [node_now.words(last)])[0]).partition(":")[0]
    id = short(str(last.get("id") or ""))[:64]
    see = f"`gpu-hook why {id}`" if id else "`gpu-hook events`"
    return [f"a container whose name is not known was refused at {when} ({code}): {see} says more"]


def life(log: list[dict[str, Any]], last: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of this container since it last got its share."""
    own = [e for e in log if e.get("id") == last.get("id")]
    begun = max((i for i, e in enumerate(own) if e["event"] == "granted"), default=0)
    return own[begun:]


def identity_of(event: dict[str, Any]) -> Identity:
    """The refused container, as far as its placement depends on it: only one in a Pod has a namespace in its name."""
    uid, name = str(event.get("uid") or ""), str(event.get("name") or "")
    return NOBODY.replace(pod_uid=uid, namespace=name.partition("/")[0] if "/" in name else "")


def room(settings: node_settings.Settings, request: Request, head: list[str], who: Identity = NOBODY) -> output.Report:
    """Reports whether the request fits now; if not, the reason on each GPU, and changes that would make it fit."""
    inventory, grants = cache.load(settings), named.snapshot(settings)
    bounds = (
        slot_files.preempt_bounds(settings.state_dir, grants) if request.terms.preempt_tolerance_us is not None else ()
    )
    found = allocate(request, inventory, grants, settings.rules, bounds, who)
    lines = list(head)
    if not isinstance(found, Refusal):
        lines.append("it would fit now")
        return output.Report({"fits": True, "changes": []}, lines)
    ways = changes(request, inventory, grants, settings.rules, bounds, who)
    index = {gpu.uuid: gpu.index for gpu in inventory.gpus}
    lines.append("now:" if head else "it would be refused:")
    lines += [f"  {note if note.startswith('GPU ') else f'GPU {index[uuid]} {note}'}" for uuid, note in found.notes]
    lines += [f"  {p.message}" for p in found.problems if not found.notes]
    lines.append("any one of these would make it fit:" if ways else "only other GPUs would make it fit")
    lines += [f"  {output.printable(way.text)}" for way in ways]
    data = {
        "fits": False,
        "problems": [output.as_data(p) for p in found.problems],
        "gpus": [{"uuid": uuid, "reason": note} for uuid, note in found.notes],
        "changes": [{"kind": w.kind, "text": w.text, "waits_for": list(w.gone)} for w in ways],
    }
    return output.Report(data, fold_lines(lines))


# A running container

Reasons = list[str]
VERBS = {  # by the state; else it runs
    "starting": "starts",
    "suspended": "is suspended,",
    "moving": "is on its way from or to its GPUs,",
    "frozen": "is frozen,",
    "paused": "is paused,",
    "killed": "was killed,",
}


def contexts(settings: node_settings.Settings) -> dict[str, int]:
    """MiB that a program's context takes, by the GPU's UUID; nothing if this user may not read that."""
    try:
        return {gpu.uuid: gpu.context_mib for gpu in cache.load(settings).gpus}
    except GhError:
        return {}


def running(
    c: dict[str, Any],
    node: dict[str, Any],
    log: list[dict[str, Any]],
    kept: bool = True,
    context_mib: Mapping[str, int] = MappingProxyType({}),
) -> output.Report:
    """The things that slow down a running container: its state, its share, its neighbours, and what the GPUs report. kept:
    whether an agent runs. context_mib: contexts()."""
    node = {**node, "kept": kept, "context_mib": context_mib}
    reasons = by_state(c, by_agent(log, c["id"]), kept, node["containers"])
    if c.get("account_problem"):
        reasons.append(f"its memory use is unknown, since its account page cannot be read: {c['account_problem']}")
    for share in c["gpus"]:
        where = f"GPU {share['index']}" if share["index"] is not None else f"GPU {share['uuid']}"
        reasons += [f"{where}: {text}" for reason in ON_GPU for text in reason(c, share, node)]
    reasons += [f"finding {f['kind']}: {f['evidence']}" for f in c["findings"]]
    verb = VERBS.get(c["state"], "runs")
    lines = [f"{named.title(c)} {verb} with policy {c['policy']}, class {c['class']}"]
    lines += [f"  {text}" for text in reasons] or ["  gpu-hook knows of nothing that slows it down"]
    if node["agent"]["state"] == "none":
        lines.append("(no agent runs, so the use of the GPUs is unknown; start one by `gpu-hook agent`)")
    return output.Report({"id": c["id"], "state": c["state"], "reasons": reasons}, fold_lines(lines))


def by_state(c: dict[str, Any], agent: str, kept: bool = True, others: Sequence[dict[str, Any]] = ()) -> Reasons:
    """Reasons in the container's state. agent: what the agent did to the container, as by_agent() says; "" if
    nothing. kept: whether an agent runs. others: the containers that it may name."""
    if c["state"] == "starting":
        seconds = c.get("waits_seconds")
        if seconds is None:
            return ["its runtime is creating it and has not started its process yet"]
        return [f"no runtime has begun to create it; its share is kept for another {seconds} s"]
    if c["state"] == "frozen" and c.get("frozen_since"):
        since = time.strftime("%H:%M:%S", time.localtime(c["frozen_since"]))
        return [f"it is frozen since {since}; `gpu-hook resume` continues it"]
    if c["state"] == "suspended":
        since, held = time.strftime("%H:%M:%S", time.localtime(c["suspended_since"])), output.size(c["host_mib"])
        if c.get("lent_to"):
            whom = next((named.title(o) for o in others if o["id"] == c["lent_to"]), output.short(c["lent_to"]))
            then = "the agent brings it back once there is room, or at its turn"
            return [
                f"it had more GPU memory than it requests, and container {whom} needed it: since {since}, {held} are"
                f" in the host's memory; {then if kept else node_now.NOT_BACK.format(output.short(c['id']))}"
            ]
        return [f"it is suspended since {since}, with {held} in the host's memory; `gpu-hook resume` continues it"]
    if c["state"] == "moving":
        return [
            "its memory is on its way from or to its GPUs; if that was cut off, `gpu-hook resume` or the agent ends it"
        ]
    if c["state"] == "killed":
        return [agent or "the agent killed it"]
    if c["state"] == "frozen" or (agent and c["state"] == "paused"):
        return [f"{agent or 'the agent froze it'}; `runc resume` continues it"]
    if c["state"] == "paused":
        return ["it is paused by its engine or runtime; unpause it there, for example by `docker unpause`"]
    return []


def gpu_of(share: dict[str, Any], node: dict[str, Any]) -> dict[str, Any] | None:
    return next((gpu for gpu in node["gpus"] if gpu["uuid"] == share["uuid"]), None)


def gpu_problem(c: dict[str, Any], share: dict[str, Any], node: dict[str, Any]) -> Reasons:
    gpu = gpu_of(share, node)
    if gpu is None:
        return ["this node does not have the GPU any more"]
    return [gpu["error"]] if gpu["error"] else []


def memory(c: dict[str, Any], share: dict[str, Any], node: dict[str, Any]) -> Reasons:
    used, limit = share["used_mib"], share["memory_mib"]
    if used is None or share["whole"] or used < limit * NEARLY_FULL:
        return []
    past = any((f["kind"], f["uuid"]) == ("over-memory", share["uuid"]) for f in c["findings"])
    lowered = (share.get("accounted_mib") or 0) > limit
    if used > limit and (past or lowered):
        then = "as `set` lowered that: it keeps them, and gets no more until it is below"
        then = then if lowered else "past the shim"
        return [f"it uses {used} MiB, {used - limit} more than its limit, {then}"]
    nearly = "nearly " if used < limit else ""
    contexts = f", {share['surcharge_mib']} MiB of it by contexts and modules" if share["surcharge_mib"] else ""
    kept = f", {share['kept_mib']} MiB of it by exited processes, whose children keep it" if share["kept_mib"] else ""
    return [
        f"memory is {nearly}used up: {used} of {limit} MiB{contexts}{kept}; allocations beyond the limit are refused"
    ]


def tight(c: dict[str, Any], share: dict[str, Any], node: dict[str, Any]) -> Reasons:
    context, limit = node["context_mib"].get(share["uuid"], 0), share["memory_mib"]
    if share["whole"] or not context or limit - context >= context:
        return []
    return [f"one program's context takes {context} of its {limit} MiB; no second program fits"]


def wait_for_memory(c: dict[str, Any], share: dict[str, Any], node: dict[str, Any]) -> Reasons:
    if not (waits := share.get("waits_mib")):
        return []
    maker = ", which the agent makes" if node["kept"] else f", and {node_now.NO_MAKER}"
    return [f"an allocation of {waits} MiB waits for room{maker} (docs/guide/lending.md)"]


def neighbours(c: dict[str, Any], share: dict[str, Any], node: dict[str, Any]) -> Reasons:
    others = [
        (o, s) for o in node["containers"] if o["key"] != c["key"] for s in o["gpus"] if s["uuid"] == share["uuid"]
    ]
    if not others or share["whole"]:
        return []
    kind = "booked, and class online competes freely" if c.get("competes") else "guaranteed"
    own = f"{share['compute']} % {compute_of(c['class'])} is {kind}" if share["compute"] else "no compute is guaranteed"
    verb = "shares" if len(others) == 1 else "share"
    beside = f"{output.count(len(others), 'other container')} {verb} the GPU"
    what = compute_of(c["class"])
    theirs = sum(s["compute"] for o, s in others if compute_of(o["class"]) == what)
    found = [f"{own}; {beside}, with {theirs} % guaranteed"]
    higher = [named.title(o) for o, _ in others if rank(o["class"]) > rank(c["class"])]
    if higher:
        promised = share["compute"] and not c.get("competes")
        until = "; while they have work, its guarantee is not in force" if promised else ""
        found.append(f"containers of a higher class come first: {', '.join(higher[:3])}{until}")
    return found


def ceiling(c: dict[str, Any], share: dict[str, Any], node: dict[str, Any]) -> Reasons:
    if not share["compute"] or share["compute_limit"] >= 100:
        return []
    return [f"its compute ceiling is {share['compute_limit']} %, also when the GPU is idle (policy {c['policy']})"]


def at_the_gate(c: dict[str, Any], share: dict[str, Any], node: dict[str, Any]) -> Reasons:
    gate = share.get("gate")
    if not gate or gate["mode"] not in WAITS:
        return []
    first = share.get("waits_for")
    behind = next((f" (container {named.title(o)})" for o in node["containers"] if first and o["id"] == first), "")
    return [f"its launches {WAITS[gate['mode']]}{behind}; threads that wait now: {gate['waiting']}"]


def compute(c: dict[str, Any], share: dict[str, Any], node: dict[str, Any]) -> Reasons:
    found = []
    if share.get("compute_used") is not None:
        found.append(f"it had {share['compute_used']:.0f} % of the GPU since the last sample")
    gpu = gpu_of(share, node)
    if gpu and gpu["utilization"] is not None and share["utilization"] is not None:
        found.append(
            f"NVML reports {share['utilization']} % utilization by it, {gpu['utilization']} % of the whole GPU"
        )
    return found


# In the order of their lines.
ON_GPU = (gpu_problem, memory, tight, wait_for_memory, neighbours, ceiling, at_the_gate, compute)


def rank(word: str) -> int:
    return CLASS_NUMBERS.get(word, CLASS_NUMBERS["default"])


def request_of(data: Any) -> Request | None:
    """The request in a refusal's event; None if there is none that this version can read."""
    try:
        return from_data(data)
    except (TypeError, KeyError, ValueError, AttributeError):
        return None
