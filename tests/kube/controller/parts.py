"""Parts of a controller that tests of other parts need."""

from oci_hook.kube.controller.client import Client
from oci_hook.kube.controller.copy import Copy
from oci_hook.kube.controller.events import Events
from oci_hook.kube.controller.preemptor import Preemptor
from oci_hook.kube.disruption import Budgets
from oci_hook.kube.preempt import Terms


def preemptor(client: Client, copy: Copy) -> Preemptor:
    """One that only takes notes: it does not run."""
    events = Events(client, lambda: 0.0)
    return Preemptor(
        *(client, copy.state, Budgets(), events, lambda: True, lambda: 0.0, "on", Terms()),
        *(lambda outcome: None, lambda line: None, copy.enabled),
    )
