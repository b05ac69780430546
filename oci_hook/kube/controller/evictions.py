"""The eviction subresource: ends a pod as its disruption budgets allow, or says whether it would."""

from typing import Any

from oci_hook.kube.controller.client import ApiError, Client


class Evictions:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._version = "policy/v1"

    async def evict(self, namespace: str, name: str, uid: str = "", dry_run: bool = False) -> None:
        """uid: "" for any pod of this name.

        Raises ApiError: 404 and 409 where the pod is gone, 429 where a budget protects it, 500 where two budgets do.
        """
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
        try:
            await self._client.post(path, self._body(namespace, name, uid, dry_run))
        except ApiError as e:
            # Before Kubernetes 1.22 the API server knows policy/v1beta1 only; it calls the other one a bad request.
            if self._version == "policy/v1" and e.status in (400, 404, 415, 422, 500) and "olicy" in e.message:
                self._version = "policy/v1beta1"
                await self._client.post(path, self._body(namespace, name, uid, dry_run))
                return
            raise

    def _body(self, namespace: str, name: str, uid: str, dry_run: bool) -> dict[str, Any]:
        options: dict[str, Any] = {"preconditions": {"uid": uid}} if uid else {}
        if dry_run:
            options["dryRun"] = ["All"]
        return {
            "apiVersion": self._version,
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": options,
        }
