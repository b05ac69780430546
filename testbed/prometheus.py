"""Starts a private Prometheus, and sends it the queries of a Grafana dashboard's panels as Grafana does."""

import json
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Json = dict[str, Any]
Lines = list[tuple[str, list[tuple[float, float]]]]  # (its name in the legend, (when, value)...) of each
GRAFANA = Path(__file__).resolve().parent.parent / "docs/grafana"
PROGRAM = "prometheus"


class Prometheus:
    """Looks at `targets` (HOST:PORT) every `scrape` seconds under the job name that the rules expect. more: of the scrape config."""

    def __init__(
        self,
        folder: Path,
        targets: str | Sequence[str],
        scrape: int,
        job: str = "gpu-hook",
        rules: Path = GRAFANA / "alerts.yaml",
        more: Json | None = None,
    ) -> None:
        targets = [targets] if isinstance(targets, str) else list(targets)
        self.scrape = scrape
        self.log = folder / "prometheus.log"
        every = f"{scrape}s"
        config = {
            "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
            "rule_files": [str(rules)],
            "scrape_configs": [{"job_name": job, "static_configs": [{"targets": targets}], **(more or {})}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # which YAML can read
        command = [PROGRAM, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb"]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen([*command, "--web.listen-address=127.0.0.1:0"], stderr=log)
        try:
            self.address = self._address()
        except BaseException:
            self.close()
            raise

    def _address(self, seconds: float = 30) -> str:
        """The address of a Prometheus that answers."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            found = re.search(r'"Listening on".* address=(\S+)', self.log.read_text())
            if found:
                try:
                    urllib.request.urlopen(f"http://{found[1]}/-/ready", timeout=5).close()
                    return found[1]
                except OSError:
                    pass
            time.sleep(0.05)
        raise RuntimeError(f"Prometheus did not start: {self.log.read_text()[-800:]}")

    def ask(self, what: str, **query: object) -> Any:
        """The `data` of an answer of its API; RuntimeError where it refuses."""
        url = f"http://{self.address}/api/v1/{what}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as e:
            raise RuntimeError(f"{query}: {e.read().decode(errors='replace')[:400]}") from None

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Dashboard:
    """The file, with each variable at the choice that it comes with."""

    def __init__(self, file: Path = GRAFANA / "dashboard.json") -> None:
        self.json: Json = json.loads(file.read_text())
        self.panels: list[Json] = self.json["panels"]
        self.variables = {v["name"]: v for v in self.json["templating"]["list"]}

    def query(self, expression: str, prometheus: Prometheus) -> str:
        """With Grafana's variables put in."""
        values = {n: v["allValue"] for n, v in self.variables.items() if v["type"] == "query"}
        values["__rate_interval"] = f"{4 * prometheus.scrape}s"  # as Grafana has it for small steps
        return re.sub(r"\$(\w+)", lambda name: str(values[name[1]]), expression)

    def choices(self, variable: str, prometheus: Prometheus) -> list[str]:
        """The choices of a variable of the kind label_values(METRIC, LABEL)."""
        query = self.variables[variable]["query"]["query"]
        metric, label = query.removeprefix("label_values(").removesuffix(")").split(", ")
        return list(prometheus.ask(f"label/{label}/values", **{"match[]": metric}))

    def series(self, panel: Json, prometheus: Prometheus, start: float, end: float) -> Lines:
        found: Lines = []
        for target in panel["targets"]:
            query = self.query(target["expr"], prometheus)
            answer = prometheus.ask("query_range", query=query, start=start, end=end, step=1)
            for line in answer["result"]:
                name = re.sub(r"{{(\w+)}}", lambda n, m=line["metric"]: m.get(n[1], ""), target["legendFormat"])
                points = [(float(at), float(value)) for at, value in line["values"] if value != "NaN"]
                found += [(name, points)] if points else []
        return found
