"""Keeps the cluster's PodDisruptionBudgets up to date, in the API version that the server has."""

from typing import Any

from oci_hook.kube.controller.api.client import ApiError, Client
from oci_hook.kube.controller.api.objects import BUDGETS, OLD_BUDGETS
from oci_hook.kube.controller.api.reflector import Reflector, Sink
from oci_hook.kube.preemption import disruption


class BudgetWatch(Reflector):
    """budgets: the copy; `budgets.known` follows `synced`."""

    def __init__(self, client: Client) -> None:
        self.budgets = disruption.Budgets(known=False)
        super().__init__(client, BUDGETS, Sink(self._put, self.budgets.drop))

    def _put(self, thing: dict[str, Any]) -> None:
        self.budgets.put(disruption.budget(thing, disruption.BETA if self.kind is OLD_BUDGETS else ""))

    async def _list(self) -> None:
        self.budgets.known = False
        try:
            await super()._list()
        except ApiError as e:
            if e.status != 404:
                raise
            # Kubernetes before 1.21 has only v1beta1, since 1.25 only v1. The server may be upgraded while we run.
            self.kind = OLD_BUDGETS if self.kind is BUDGETS else BUDGETS
            await super()._list()
        self.budgets.known = self.synced.is_set()
