"""`gpu-hook why`: why a container was refused or is slow, with numbers, and the smallest change that would help."""

import time
from typing import Any

import click

from oci_hook.agent.event_log import Follower
from oci_hook.cli import live, output
from oci_hook.cli.explain import pairs
from oci_hook.config import settings as node_settings
from oci_hook.core.allocate import Refusal, allocate
from oci_hook.core.request import GpuRequest, Request, parse
from oci_hook.core.suggest import changes
from oci_hook.errors import GhError, refuse
from oci_hook.ledger import inventory as cache
from oci_hook.ledger import store
from oci_hook.oci import request_mounts

MIN_PREFIX = 6
WAITS = {
    "rotate": "take turns with those of others who want the GPU as well",
    "frozen": "wait for a higher class, or are frozen",
    "capped": "wait because its cap is used up",
    "drain": "wait for a lower class to leave the GPU",
}


@click.command()
@click.argument("container", default="")
@click.option("--annotation", "-a", multiple=True, metavar="K=V", help="Ask of a container with this annotation.")
@output.answers
def why(prefix: str, container: str, annotation: tuple[str, ...]) -> output.Report:
    """Why was CONTAINER refused, or why is it slow?

    CONTAINER is an id, its beginning, or a name; or describe a container that does not exist by its annotations.
    """
    if bool(container) == bool(annotation):
        raise click.UsageError("name a CONTAINER, or describe one by --annotation; not both")
    settings = node_settings.load(prefix)
    if annotation:
        request = parse(pairs("--annotation", annotation), {}, "", settings.rules, (), request_mounts.decode)
        if request is None:
            return output.Report({"fits": True, "changes": []}, ["these annotations ask for no GPU"])
        return room(settings, request, [])
    node = live.node(settings, prefix)
    living = [
        c for c in node["containers"] if matches(c["id"], "/".join((c["namespace"], c["pod"], c["name"])), container)
    ]
    if len(living) > 1:
        raise refuse(
            "GH-410", f"{len(living)} containers match {container}: {', '.join(c['id'][:20] for c in living[:5])}"
        )
    if living:
        return running(living[0], node)
    log = Follower(settings.state_dir, old=True).read()
    told = [
        e
        for e in log
        if e["event"] in ("granted", "refused", "ended") and matches(str(e.get("id")), str(e.get("name")), container)
    ]
    if not told:
        raise refuse(
            "GH-410", f"no container {container} holds a share, and no event tells of one; see `gpu-hook events`"
        )
    last = told[-1]
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last["at"]))
    if last["event"] != "refused":
        ended = f"ended at {when}" if last["event"] == "ended" else f"got its share at {when}, and has ended since"
        line = f"{last.get('id')} {ended}; nothing keeps it waiting"
        return output.Report({"container": last.get("id"), "state": "ended"}, [output.printable(line)])
    head = [f"{last.get('id') or container} was refused at {when}:", *(f"  {text}" for text in last.get("lines") or ())]
    head = [output.printable(text) for text in head]
    request = request_of(last.get("request"))
    if request is None:
        return output.Report({"container": last.get("id"), "state": "refused", "lines": last.get("lines")}, head)
    return room(settings, request, head)


def told(lines: list[str]) -> list[str]:
    """As the terminal has room for it."""
    safe = [output.printable(text) if text else "" for text in lines]
    return [part for text in safe for part in output.folded(text, output.columns())]


def matches(id: str, name: str, container: str) -> bool:
    parts = name.split("/")
    return container in (id, name, name.strip("/"), parts[-1]) or (
        len(container) >= MIN_PREFIX and id.startswith(container)
    )


def room(settings: node_settings.Settings, request: Request, head: list[str]) -> output.Report:
    """Does it fit now; if not, why on each GPU, and what would."""
    inventory, grants = cache.load(settings), store.snapshot(settings.state_dir)
    found = allocate(request, inventory, grants, settings.rules)
    lines = list(head)
    if not isinstance(found, Refusal):
        lines.append("it would fit now")
        return output.Report({"fits": True, "changes": []}, lines)
    ways = changes(request, inventory, grants, settings.rules)
    index = {gpu.uuid: gpu.index for gpu in inventory.gpus}
    lines.append("now:" if head else "it would be refused:")
    lines += [f"  {note if note.startswith('GPU ') else f'GPU {index[uuid]} {note}'}" for uuid, note in found.notes]
    lines += [f"  {p.message}" for p in found.problems if not found.notes]
    lines.append("any one of these would make it fit:" if ways else "nothing short of other GPUs would make it fit")
    lines += [f"  {output.printable(way.text)}" for way in ways]
    data = {
        "fits": False,
        "problems": [output.as_data(p) for p in found.problems],
        "gpus": [{"uuid": uuid, "reason": note} for uuid, note in found.notes],
        "changes": [{"kind": w.kind, "text": w.text, "waits_for": list(w.gone)} for w in ways],
    }
    return output.Report(data, told(lines))


def running(c: dict[str, Any], node: dict[str, Any]) -> output.Report:
    """What holds a running container up, from its share, its neighbours and what the GPUs say."""
    reasons: list[str] = []
    if c["state"] == "starting":
        waits = c.get("waits_seconds")
        made = "it is being made: its runtime has not started its process yet"
        none = f"nobody has begun to make it: its share is kept for {waits} s more"
        reasons.append(made if waits is None else none)
    if c.get("account"):
        reasons.append(f"account page: {c['account']}; what it uses is not known")
    if c["state"] == "frozen":
        since = (
            f" since {time.strftime('%H:%M:%S', time.localtime(c['frozen_since']))}" if c.get("frozen_since") else ""
        )
        reasons.append(f"it is frozen{since}; `gpu-hook resume` lets it go on (after a finding: `runc resume`)")
    for share in c["gpus"]:
        reasons += on_gpu(c, share, node)
    reasons += [f"finding {f['kind']}: {f['evidence']}" for f in c["findings"]]
    name = output.short(c["id"])
    verb = "is to run" if c["state"] == "starting" else "runs"
    lines = [f"{name} {verb} with {c['policy']}, class {c['class']}"]
    lines += [f"  {text}" for text in reasons] or ["  nothing that gpu-hook knows of holds it up"]
    if node["agent"]["state"] == "none":
        lines.append("(no agent runs: use of the GPUs is not known, `gpu-hook agent`)")
    data = {"container": c["id"], "state": c["state"], "reasons": reasons}
    return output.Report(data, told(lines))


def on_gpu(c: dict[str, Any], share: dict[str, Any], node: dict[str, Any]) -> list[str]:
    where = f"GPU {share['index']}" if share["index"] is not None else f"GPU {share['uuid']}"
    found = []
    gpu = next((x for x in node["gpus"] if x["uuid"] == share["uuid"]), None)
    if gpu is None or gpu["error"]:
        found.append(f"{where}: {gpu['error'] if gpu else 'is not among the GPUs of this node any more'}")
    used, limit = share["used_mib"], share["memory_mib"]
    if used is not None and not share["whole"] and used * 20 >= limit * 19:
        over = f", {share['surcharge_mib']} MiB of it by contexts and modules" if share["surcharge_mib"] else ""
        found.append(f"{where}: memory is nearly used up: {used} of {limit} MiB{over}; allocations beyond are refused")
    others = [
        (o, s) for o in node["containers"] if o["key"] != c["key"] for s in o["gpus"] if s["uuid"] == share["uuid"]
    ]
    if others and not share["whole"]:
        guaranteed = sum(s["compute"] for _, s in others)
        also = f"{len(others)} others share" if len(others) > 1 else "another shares"
        own = f"{share['compute']} % compute is guaranteed" if share["compute"] else "no compute is guaranteed"
        found.append(f"{where}: {own}; {also} it, with {guaranteed} % guaranteed")
        higher = [o for o, _ in others if rank(o["class"]) > rank(c["class"])]
        if higher:
            names = ", ".join(output.short(o["id"]) for o in higher[:3])
            found.append(f"{where}: of a higher class, and first: {names}")
    if share["compute"] and share["compute_limit"] < 100:
        found.append(
            f"{where}: its compute ends at {share['compute_limit']} %, also when the GPU is idle ({c['policy']})"
        )
    gate = share.get("gate")
    if gate and gate["mode"] in WAITS:
        behind = f" (container {output.short(share['waits_for'])})" if share.get("waits_for") else ""
        found.append(f"{where}: its launches {WAITS[gate['mode']]}{behind}; threads that wait now: {gate['waiting']}")
    if share.get("share") is not None:
        found.append(f"{where}: it had {share['share']:.0f} % of the GPU since the look before")
    if gpu and gpu["busy"] is not None and share["busy"] is not None:
        found.append(f"{where}: NVML sees it busy {share['busy']} %, the GPU {gpu['busy']} %")
    return found


def rank(word: str) -> int:
    return {"offline": 0, "online": 2}.get(word, 1)


def request_of(data: Any) -> Request | None:
    """The request that a refusal's event carries; None where it carries none that this version understands."""
    try:
        fields = dict(data)
        gpus = tuple(GpuRequest(**gpu) for gpu in fields.pop("gpus"))
        for name in ("capabilities", "narrow_to"):
            fields[name] = None if fields.get(name) is None else tuple(fields[name])
        fields["imex_channels"] = tuple(fields.get("imex_channels") or ())
        return Request(gpus, **fields)
    except (TypeError, KeyError, ValueError, GhError):
        return None
