"""A hostile tenant's cost to others: the same calls beside a busy container, and beside one that attacks all that
gpu-hook mounts into it (testbed/hostile_tenant.c), in turns; both have half a core. A ratio is the median beside the
attack over the median beside the other.

start: a container with a share, from `run` to its end, with one allocation. ps, set: the command's work without the
start of its Python. scrape: /metrics of a running agent. slowest_s: the longest that any call took beside the attack.
refused: calls that failed beside the attack. image_cpu_ms, image_mb: the most that `create` of a container takes more
with one of the images of tests/test_expensive_images.py than with an ordinary one, by wait4(2); or until it is refused.
"""

import contextlib
import itertools
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner

from oci_hook.cli.main import cli
from oci_hook.ledger import slot_files
from testbed import agent as agents
from testbed import expensive_images as expensive
from testbed import tiny_image
from testbed.containers import Runc
from testbed.hostile import ATTACKS, build, half_a_core, hostile
from testbed.installs import Install
from testbed.stage import SHARE, Stage

ASK = {**SHARE, "gpu-hook.io/memory": "1Gi", "gpu-hook.io/compute": "10"}
CALLS = ("start", "ps", "set", "scrape")
BUDGET = 2.0


def run(short: bool) -> dict[str, dict[str, object]]:
    folder = Path(tempfile.mkdtemp(prefix="gpu-hook-hostile-"))
    with contextlib.closing(Stage(folder)) as stage:
        image = agents.image(folder)
        shutil.copy(build(folder / "tenant"), image / "bin/tenant")
        figures = _figures(*_measure(stage, image, 3 if short else 10))
    with tempfile.TemporaryDirectory(prefix="gpu-hook-images-") as place:
        return figures | _images(Path(place), 3 if short else 9)


Times = dict[str, list[float]]


def _measure(stage: Stage, image: Path, turns: int) -> tuple[Times, Times, int]:
    quiet: Times = {name: [] for name in CALLS}
    loud: Times = {name: [] for name in CALLS}
    refused = 0
    neighbour = stage.start(image, "/bin/gpu-probe", "alloc", "32", "hold", "36000", annotations=ASK)
    with agents.running(stage, "--policy", "report") as agent:

        def start() -> bool:
            return stage.run(image, "/bin/gpu-probe", "alloc", "64", annotations=ASK).returncode == 0

        def command(*words: str) -> Callable[[], bool]:
            args = [*words, "--json", "--prefix", str(stage.prefix)]
            return lambda: CliRunner().invoke(cli, args).exit_code == 0

        calls = {"start": start, "ps": command("ps"), "set": command("set", neighbour, "--compute", "20")}
        calls["scrape"] = lambda: bool(agent.get("/metrics"))
        for _ in range(turns):
            for attacks, times in ((("spins",), quiet), (ATTACKS, loud)):
                with hostile(stage, image, attacks, ASK, half_a_core):
                    for _ in range(5):
                        for name, call in calls.items():
                            began = time.perf_counter()
                            done = call()
                            times[name].append(time.perf_counter() - began)
                            refused += not done
    stage.runc("delete", "--force", neighbour)
    return quiet, loud, refused


IMAGES = (
    *("a_cache_of_library_names", "a_cache_of_folders", "a_library_folder_of_many_names", "many_compat_folders"),
    *("links_that_go_to_and_fro", "thousands_of_short_mounts", "a_volume_of_links"),
)


def _images(place: Path, times: int) -> dict[str, dict[str, object]]:
    install = Install(place)
    subprocess.run(["runc", "spec"], cwd=place, check=True)
    spec = json.loads((place / "config.json").read_text())
    spec["process"].update(terminal=False, args=["/bin/sleep", "300"])
    spec["annotations"] = expensive.ASK
    numbers = itertools.count()
    runc = Runc(place)

    def create(image: Path, edit: "expensive.Edit | None") -> tuple[float, float]:
        bundle = place / f"bundle{next(numbers)}"
        bundle.mkdir()
        own = json.loads(json.dumps({**spec, "root": {"path": str(image), "readonly": False}}))
        if edit:
            edit(own)
        (bundle / "config.json").write_text(json.dumps(own))
        command = [install.program, "--root", str(runc.root), "create", "--bundle", str(bundle), runc.new_id()]
        _, seconds, megabytes = expensive.cost(command, place / "err")
        runc("delete", "--force", runc.ids[-1])
        return seconds, megabytes

    def typical(image: Path, edit: "expensive.Edit | None") -> tuple[float, float]:
        taken = [create(image, edit) for _ in range(times)]
        return statistics.median(s for s, _ in taken), max(m for _, m in taken)

    plain = typical(tiny_image.busybox(place / "plain"), None)
    worst = [0.0, 0.0]
    for name in IMAGES:
        image = tiny_image.busybox(place / name / "image")
        used = typical(image, expensive.SHAPES[name](image))
        worst = [max(worst[0], 1000 * (used[0] - plain[0])), max(worst[1], used[1] - plain[1])]
        subprocess.run(["rm", "-rf", place / name], check=True)
    runc.close()
    slot_files.drop(str(install.state))
    return {
        "image_cpu_ms": {"value": round(worst[0], 1), "unit": "ms", "budget": 100, "ok": worst[0] <= 100},
        "image_mb": {"value": round(worst[1], 1), "unit": "MB", "budget": 64, "ok": worst[1] <= 64},
    }


def _figures(quiet: Times, loud: Times, refused: int) -> dict[str, dict[str, object]]:
    figures: dict[str, dict[str, object]] = {}
    for name in CALLS:
        plain, beside = statistics.median(quiet[name]), statistics.median(loud[name])
        figures[f"{name}_ms"] = {"value": round(1000 * plain, 2), "unit": "ms", "budget": None, "ok": True}
        ratio = beside / plain
        figures[f"{name}_ratio"] = {"value": round(ratio, 3), "unit": "x", "budget": BUDGET, "ok": ratio <= BUDGET}
    slowest = max(max(times) for times in loud.values())
    figures["slowest_s"] = {"value": round(slowest, 3), "unit": "s", "budget": None, "ok": True}
    figures["refused"] = {"value": refused, "unit": "calls", "budget": 0, "ok": refused == 0}
    return figures
