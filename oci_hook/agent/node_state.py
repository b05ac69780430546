"""State that the agent's parts share: the settings, the grants, the GPUs and the problems.

Each part has a file and state of its own: watch/ledger_watch.py (grants); in act/ driver_changes.py (inventory, device
nodes), sampling.py (NVML's samples), auditing.py and protection.py (findings), no_leases.py, response.py (acts on
findings); serve/publish.py (shows it all).
"""

from oci_hook.agent import journal
from oci_hook.agent.counters import Counters
from oci_hook.agent.judge.gpu_sample import GpuSample
from oci_hook.agent.options import AgentOptions
from oci_hook.agent.watched import Watched
from oci_hook.config import settings as node_settings
from oci_hook.core.grant import Grant
from oci_hook.core.inventory import Gpu, Inventory
from oci_hook.errors import GhError


class NodeState:
    """grants, watched: by key. inventory: None where the cached one does not hold. gpus: NVML's last samples, by UUID.
    problems: texts, by what is wrong (metrics.PROBLEMS). shown: whether what is published is up to date.
    page: HOST:PORT of the web page, "" where there is none."""

    def __init__(self, prefix: str, options: AgentOptions) -> None:
        self.prefix = prefix
        self.options = options
        self.settings = node_settings.load(prefix)
        self.inventory: Inventory | None = None
        self.grants: dict[str, Grant] = {}
        self.watched: dict[str, Watched] = {}
        self.gpus: dict[str, GpuSample] = {}
        self.problems: dict[str, str] = {}
        self.counters = Counters()
        self.shown = False
        self.page = ""

    @property
    def state_dir(self) -> str:
        return self.settings.state_dir

    def load_settings(self) -> None:
        try:
            self.settings = node_settings.load(self.prefix)
        except GhError as e:
            self.problem("settings", str(e))
        else:
            self.problem("settings", "")

    def problem(self, name: str, what: str) -> None:
        """Note what is wrong, or that it is not any more (""); only changes go to the journal."""
        if what == self.problems.get(name, ""):
            return
        if what:
            self.problems[name] = what[:300]
            journal.write(f"{name}: {what}", journal.WARNING)
        else:
            del self.problems[name]
            journal.write(f"{name}: well again", journal.NOTICE)

    def gpu(self, uuid: str) -> Gpu | None:
        return next((gpu for gpu in self.inventory.gpus if gpu.uuid == uuid), None) if self.inventory else None

    def sharing(self, uuid: str) -> dict[str, Grant]:
        """The grants with a share of this GPU, by key."""
        return {k: g for k, g in self.grants.items() if any(share.uuid == uuid for share in g.shares)}

    def granted_gpus(self) -> set[str]:
        """The UUIDs of all GPUs that a grant has a share of."""
        return {share.uuid for grant in self.grants.values() for share in grant.shares}
