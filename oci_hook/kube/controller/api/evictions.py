"""Evicts pods by the eviction subresource, which respects PodDisruptionBudgets. Also as a dry run."""

from typing import Any

from oci_hook.kube.controller.api.client import ApiError, Client

V1, BETA = "policy/v1", "policy/v1beta1"


class Evictions:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._version = V1

    async def evict(
        self, namespace: str, name: str, uid: str = "", dry_run: bool = False, grace: int | None = None
    ) -> None:
        """uid: "" for any pod of this name. grace: seconds, None for the pod's own.

        Raises ApiError: 404 or 409 if the pod is gone, 429 if a budget protects it, 500 if several budgets select it.
        """
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
        options: dict[str, Any] = {"preconditions": {"uid": uid}} if uid else {}
        if dry_run:
            options["dryRun"] = ["All"]
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        try:
            await self._client.post(path, self._body(namespace, name, options))
        except ApiError as e:
            # Before Kubernetes 1.22 the API server has policy/v1beta1 only, and rejects policy/v1 as a bad request.
            # The message may also contain names that tenants choose, so we switch only if v1beta1 works.
            if self._version == BETA or e.status not in (400, 404, 415, 422, 500) or "policy/v1" not in e.message:
                raise
            try:
                await self._client.post(path, self._body(namespace, name, options, BETA))
            except ApiError as other:
                if other.status != 429:
                    raise e if "policy/v1beta1" in other.message else other from None
                self._version = BETA
                raise
            self._version = BETA

    def _body(self, namespace: str, name: str, options: dict[str, Any], version: str = "") -> dict[str, Any]:
        return {
            "apiVersion": version or self._version,
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": options,
        }
