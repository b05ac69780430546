"""Keeps the cluster's PodDisruptionBudgets up to date, in the version that the API server has."""

from collections.abc import Callable
from typing import Any

from oci_hook.kube import disruption
from oci_hook.kube.controller.client import ApiError, Client
from oci_hook.kube.controller.objects import BUDGETS, OLD_BUDGETS
from oci_hook.kube.controller.reflector import Reflector


class BudgetWatch(Reflector):
    """budgets: what is known; `budgets.known` follows `synced`."""

    def __init__(self, client: Client, log: Callable[[str], None]) -> None:
        self.budgets = disruption.Budgets(known=False)
        super().__init__(client, BUDGETS, _Sink(self), log)

    async def _list(self) -> None:
        self.budgets.known = False
        try:
            await super()._list()
        except ApiError as e:
            if e.status != 404:
                raise
            # Before Kubernetes 1.21 there is v1beta1 only, since 1.25 only v1; an API server may change while we run.
            self.kind = OLD_BUDGETS if self.kind is BUDGETS else BUDGETS
            await super()._list()
        self.budgets.known = self.synced.is_set()


class _Sink:
    def __init__(self, watch: BudgetWatch) -> None:
        self._watch = watch

    def apply(self, thing: Any) -> None:
        self._watch.budgets.put(disruption.budget(thing, disruption.BETA if self._watch.kind is OLD_BUDGETS else ""))

    def remove(self, key: str) -> None:
        self._watch.budgets.drop(key)
