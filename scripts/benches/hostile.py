"""What a hostile tenant costs others: the same calls beside a container that sleeps, and beside one that attacks all
that gpu-hook mounts into it (tests/hostile/tenant.c), in turns. A ratio is the median beside the attack over the median
beside the sleeper.

start: a container with a share, from `run` to its end, with one allocation. ps, set: the command's work without the
start of its Python. scrape: /metrics of a running agent. slowest_s: the longest that any call took beside the attack.
refused: calls that failed beside the attack.
"""

import contextlib
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO), str(REPO / "scripts")]

from click.testing import CliRunner  # noqa: E402

from oci_hook.cli.main import cli  # noqa: E402
from tests.agent import box as agents  # noqa: E402
from tests.e2e.stage import SHARE, Stage  # noqa: E402
from tests.hostile.box import ATTACKS, build, hostile  # noqa: E402

ASK = {**SHARE, "gpu-hook.io/memory": "1Gi", "gpu-hook.io/compute": "10"}
CALLS = ("start", "ps", "set", "scrape")
BUDGET = 2.0


def run(short: bool) -> dict[str, dict[str, object]]:
    folder = Path(tempfile.mkdtemp(prefix="gpu-hook-hostile-"))
    with contextlib.closing(Stage(folder)) as stage:
        image = agents.image(folder)
        shutil.copy(build(folder / "tenant"), image / "bin/tenant")
        return _figures(*_measure(stage, image, 3 if short else 10))


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
            for attacks, times in (((), quiet), (ATTACKS, loud)):
                with hostile(stage, image, attacks, ASK):
                    for _ in range(5):
                        for name, call in calls.items():
                            began = time.perf_counter()
                            done = call()
                            times[name].append(time.perf_counter() - began)
                            refused += not done
    stage.runc("delete", "--force", neighbour)
    return quiet, loud, refused


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
