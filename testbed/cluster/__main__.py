"""A Kubernetes cluster (1.20.2, or a release that you have) of nodes with simulated GPUs on this machine, for development and tests.

Each node is a "machine" in namespaces of its own, with a real kubelet, containerd, runc, this checkout's gpu-hook and
simulated GPUs. Nothing of this machine is changed; `down` leaves nothing. Needs root and cgroup v1 (hybrid).
"""

import argparse
import hashlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from testbed import REPO
from testbed.cluster import control, node, programs, smoke
from testbed.cluster.build import build, take
from testbed.cluster.cluster import Cluster
from testbed.cluster.node import Gpus
from testbed.cluster.programs import CannotRun

SIGNALS = {"stop": signal.SIGTERM, "kill": signal.SIGKILL}


def main() -> int:
    given, rest = sys.argv[1:], []
    if "kubectl" in given:  # all that follows is kubectl's, options too
        rest = given[given.index("kubectl") + 1 :]
        given = given[: len(given) - len(rest)]
    options = parser().parse_args(given)
    options.kubectl = rest
    try:
        return int(options.does(options) or 0)
    except (CannotRun, RuntimeError, ValueError) as e:
        print(f"cluster: {e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser("scripts/cluster", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    top.add_argument("--state", type=Path, default=default_state(), help="the cluster's folder (default: %(default)s)")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, does: object, help: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=help, description=help)
        made.set_defaults(does=does)
        return made

    p = command("build", do_build, "fetch and compile the programs, once; 5 to 20 minutes on two cores")
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time (default: %(default)s)")
    p.add_argument("--kubernetes", type=Path, metavar="DIR", help="no compiler: take a release's programs from DIR")
    command("versions", do_versions, "those of Kubernetes that are built or taken, the newest last")
    p = command("up", do_up, "start a cluster of N nodes, or what does not run of one")
    p.add_argument("nodes", type=int, nargs="?", default=1, metavar="N")
    p.add_argument("--gpus", default="2x16Gi", help="of each node: 2x16Gi,4x24Gi,0 (the last one again for the rest)")
    p.add_argument("--kubernetes", default="", help="a version that is built or taken (1.20, 1.36), or a DIR/ to take")
    p.add_argument("--no-gpu-hook", action="store_true", help="nodes with GPUs, but without gpu-hook")
    p.add_argument("--scheduler-config", type=Path, help="a KubeSchedulerConfiguration: extenders, profiles")
    p.add_argument("--flag", action="append", default=[], metavar="PROGRAM=FLAG", help="one more: kube-apiserver=--v=4")
    command("down", do_down, "end the cluster and remove all of it")
    command("status", do_status, "what there is, and what runs")
    command("kubectl", do_kubectl, "kubectl as the cluster's administrator: kubectl ARGUMENTS...")
    command("smoke", do_smoke, "shares, a refusal and a killed kubelet on a cluster that is up")
    p = command(
        "node", do_node, "node I on | off | run COMMAND... | gpu-hook ... | (containerd|kubelet) (stop|kill|start)"
    )
    p.add_argument("node")
    p.add_argument("what", choices=("on", "off", "run", "gpu-hook", *node.SERVICES))
    p.add_argument("arguments", nargs=argparse.REMAINDER)
    p = command("control", do_control, "control SERVICE (stop|kill|start); control run COMMAND...")
    p.add_argument("what", choices=("run", *control.SERVICES))
    p.add_argument("arguments", nargs=argparse.REMAINDER)
    return top


def default_state() -> Path:
    """Each checkout has a cluster of its own. The path is short, since sockets are below it."""
    chosen = os.environ.get("GPU_HOOK_CLUSTER")
    mine = hashlib.sha256(str(REPO).encode()).hexdigest()[:8]
    return Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"gpu-hook-cluster-{mine}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def do_build(options: argparse.Namespace) -> None:
    if options.kubernetes:
        take(options.kubernetes, say)
    else:
        build(options.jobs, say)


def do_versions(options: argparse.Namespace) -> None:
    for version in programs.versions():
        print(version)


def do_up(options: argparse.Namespace) -> None:
    if options.nodes < 1:
        raise ValueError(f"{options.nodes} nodes: one or more")
    each = [Gpus.parse(text) for text in options.gpus.split(",")]
    gpus = (each + each[-1:] * options.nodes)[: options.nodes]
    flags: dict[str, list[str]] = {}
    for text in options.flag:
        program, _, flag = text.partition("=")
        flags.setdefault(program, []).append(flag)
    wanted = options.kubernetes
    if "/" in wanted:
        wanted = take(Path(wanted), say)
    if wanted:
        programs.use(wanted)
        if wanted != programs.BUILT_HERE:
            build(1, say)
    cluster = Cluster(options.state)
    if wanted and programs.version() != wanted:
        raise CannotRun(
            f"the cluster in {options.state} is one of Kubernetes {programs.version()}; scripts/cluster down first"
        )
    if options.scheduler_config:
        cluster.state.mkdir(parents=True, exist_ok=True)
        cluster.control.scheduler_config.write_text(options.scheduler_config.read_text())
    cluster.up(gpus, not options.no_gpu_hook, flags, say)
    state = "" if options.state == default_state() else f"--state {shlex.quote(str(options.state))} "
    say(f"try: scripts/cluster {state}kubectl get nodes")


def existing(options: argparse.Namespace) -> Cluster:
    cluster = Cluster(options.state)
    if not cluster.exists:
        raise CannotRun(f"no cluster in {options.state}; scripts/cluster up N makes one")
    return cluster


def do_down(options: argparse.Namespace) -> None:
    Cluster(options.state).down()


def do_status(options: argparse.Namespace) -> None:
    for name, what in existing(options).status():
        print(f"{name:10} {what}")


def do_kubectl(options: argparse.Namespace) -> int:
    return subprocess.run(existing(options).control.kubectl_line(*options.kubectl)).returncode


def do_smoke(options: argparse.Namespace) -> None:
    smoke.run(existing(options), print)


def do_node(options: argparse.Namespace) -> int:
    cluster = existing(options)
    it = cluster.node(options.node)
    if options.what == "on":
        it.on(cluster.images)
    elif options.what == "off":
        it.off()
    elif options.what == "run":
        return subprocess.run(it.machine.line(*options.arguments)).returncode
    elif options.what == "gpu-hook":
        return subprocess.run(it.machine.line(*it.gpu_hook_line(*options.arguments))).returncode
    else:
        change(it, options)
    return 0


def do_control(options: argparse.Namespace) -> int:
    it = existing(options).control
    if options.what == "run":
        return subprocess.run(it.machine.line(*options.arguments)).returncode
    change(it, options)
    return 0


def change(it: node.Node | control.Control, options: argparse.Namespace) -> None:
    """stop, kill or start one service."""
    how = options.arguments[0] if len(options.arguments) == 1 else ""
    if how == "start":
        it.start(options.what)
    elif how in SIGNALS:
        it.stop(options.what, SIGNALS[how])
    else:
        raise CannotRun(f"{options.what}: stop, kill or start?")


sys.exit(main())
