"""Renews the controller's Secret and publishes parts of it: the server's certificate, and the CA bundle in our webhook
configurations and in a ConfigMap for the nodes. Only the leader writes; the others read."""

import asyncio
import base64
import logging
import os
import random
import time
from collections.abc import Callable
from typing import Any

from oci_hook.core.backoff import Backoff
from oci_hook.kube.controller.api.client import JSON_PATCH, ApiError, Client
from oci_hook.kube.controller.options import ControllerOptions
from oci_hook.kube.controller.trust import own_secret
from oci_hook.kube.controller.trust.own_secret import Own
from oci_hook.kube.formats.names import CA_CONFIG_MAP, CONTROLLER

LOG = logging.getLogger(__name__)

EVERY = 20.0  # seconds between two looks
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
# The API server asks about pods that are made, and about changed annotations: other changes of pods then need no controller.
# Kubernetes 1.28; older API servers drop the field.
NOTES, OLD_NOTES = "object.metadata.annotations", "oldObject.metadata.annotations"
CHANGED = f"has({NOTES}) != has({OLD_NOTES}) || (has({NOTES}) && {NOTES} != {OLD_NOTES})"
CONDITION = [{"name": "annotations-change", "expression": f"request.operation == 'CREATE' || {CHANGED}"}]
CONDITIONAL = ("pods.gpu-hook.io", "status.gpu-hook.io")
VALIDATING = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


class Authority:
    """own: the Secret as last read or written. changed: called with it after each change. leads: True while we may write.
    newest_key: the key generation that the nodes report."""

    def __init__(
        self,
        client: Client,
        options: ControllerOptions,
        changed: Callable[[Own], None],
        leads: Callable[[], bool],
        newest_key: Callable[[], int],
    ) -> None:
        self.own = Own()
        self.announced = False  # our webhook configurations have the bundle
        self._conditions = True  # False: the API server dropped them
        self._client, self._options = client, options
        self._changed, self._leads, self._newest_key = changed, leads, newest_key
        self._folder = f"/api/v1/namespaces/{options.namespace}"
        self._soon = asyncio.Event()
        self._one = asyncio.Lock()

    def hurry(self) -> None:
        self._soon.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        backoff = Backoff(0.5, EVERY, random.random)
        while True:
            wait = min(EVERY, self._options.certificate_life / 60)
            self._soon.clear()
            try:
                await self.look()
                backoff.worked()
            except ApiError as e:
                wait = max(e.retry_after, backoff.failed())
                LOG.warning(f"certificates: {e}")
            try:
                await asyncio.wait_for(self._soon.wait(), wait)
            except asyncio.TimeoutError:
                pass

    async def refresh(self) -> None:
        """Reads the Secret again: the leader before us may have signed its last decisions with a new key."""
        async with self._one:
            self._know(own_secret.read((await self._secret()).get("data")))

    async def look(self) -> None:
        async with self._one:
            await self._look()

    async def _look(self) -> None:
        secret = await self._secret()
        own = own_secret.read(secret.get("data"))
        if self._leads():
            due = own_secret.renewed(
                own,
                self._options.names,
                self._options.certificate_life,
                self._options.key_life,
                time.time(),
                os.urandom(64),
                self._newest_key(),
            )
            if due is not own:
                own = await self._write(secret, due)
        self._know(own)
        if self._leads():
            await self._announce()

    def _know(self, own: Own) -> None:
        if own != self.own and own.certificates.serving:
            self.own = own
            self._changed(own)

    async def _secret(self) -> dict[str, Any]:
        try:
            return await self._client.get(f"{self._folder}/secrets/{CONTROLLER}")
        except ApiError as e:
            if e.status == 404:
                return {}
            raise

    async def _write(self, secret: dict[str, Any], own: Own) -> Own:
        """Writes our keys and keeps others, which a newer version may have added. The API server refuses (409) if the Secret changed
        meanwhile; the next look reads the change."""
        if secret:
            await self._client.put(
                f"{self._folder}/secrets/{CONTROLLER}",
                {**secret, "data": {**(secret.get("data") or {}), **own_secret.data(own)}},
            )
        else:
            made = {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": CONTROLLER},
                "data": own_secret.data(own),
            }
            await self._client.post(f"{self._folder}/secrets", made)
        LOG.info("certificates or keys renewed")
        return own

    async def _announce(self) -> None:
        bundle = self.own.certificates.bundle
        told = {"ca.crt": bundle, "generation": str(self.own.secrets.newest)}
        await self._config_map(told)
        found = 0
        for folder, name in (
            (CONFIGURATIONS, self._options.mutating),
            (VALIDATING, self._options.validating),
        ):
            found += bool(name) and await self._configuration(f"{folder}/{name}", bundle)
        if not found and self.announced:
            LOG.error(f"the webhook configuration {self._options.mutating} is missing: no pod gets a decision")
        self.announced = bool(found)

    async def _config_map(self, told: dict[str, str]) -> None:
        path = f"{self._folder}/configmaps/{CA_CONFIG_MAP}"
        try:
            have = await self._client.get(path)
        except ApiError as e:
            if e.status != 404:
                raise
            made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CA_CONFIG_MAP}, "data": told}
            await self._client.post(f"{self._folder}/configmaps", made)
            return
        data = {**(have.get("data") or {}), **told}  # keeps entries of a newer version
        if have.get("data") != data:
            await self._client.put(path, {**have, "data": data})

    async def _configuration(self, path: str, bundle: str) -> bool:
        """Puts our bundle and our token into the webhook configuration. Returns False if it does not exist."""
        try:
            have = await self._client.get(path)
        except ApiError as e:
            if e.status == 404:
                return False
            raise
        patch = configuration_patch(have, bundle, self.own.webhook_token, self._conditions)
        if patch:
            made = await self._client.patch(path, patch, JSON_PATCH)
            self._conditions &= not any(_lacks_condition(hook) for hook in made.get("webhooks") or ())
            LOG.info(f"{have['metadata']['name']}: bundle of certificate authorities, paths, conditions")
        return True


def configuration_patch(have: Any, bundle: str, token: str, conditions: bool) -> list[dict[str, Any]]:
    """The JSON Patch that sets the CA bundle, puts the token into each path, and with `conditions` the match conditions; [] if nothing
    changes. A path's first segment stays; without one, the webhook's name tells it."""
    encoded = base64.b64encode(bundle.encode()).decode()
    patch: list[dict[str, Any]] = []
    for i, hook in enumerate(have.get("webhooks") or ()):
        first = "bindings" if hook.get("name") == "bindings.gpu-hook.io" else "pods"
        target = hook.get("clientConfig") or {}
        at = f"/webhooks/{i}/clientConfig"
        if target.get("caBundle") != encoded:
            patch.append({"op": "add", "path": f"{at}/caBundle", "value": encoded})
        if service := target.get("service"):
            path = _with_token(service.get("path") or "", first, token)
            if service.get("path") != path:
                patch.append({"op": "add", "path": f"{at}/service/path", "value": path})
        elif url := target.get("url"):
            start, slashes, rest = url.partition("://")
            host, _, path = rest.partition("/")
            wanted = f"{start}{slashes}{host}{_with_token(path, first, token)}"
            if url != wanted:
                patch.append({"op": "add", "path": f"{at}/url", "value": wanted})
        if conditions and _lacks_condition(hook):
            patch.append({"op": "add", "path": f"/webhooks/{i}/matchConditions", "value": CONDITION})
    if patch:
        patch.insert(
            0, {"op": "test", "path": "/metadata/resourceVersion", "value": have["metadata"]["resourceVersion"]}
        )
    return patch


def _lacks_condition(hook: Any) -> bool:
    return hook.get("name") in CONDITIONAL and not hook.get("matchConditions")


def _with_token(path: str, first: str, token: str) -> str:
    """/bindings and /bindings/OLD -> /bindings/TOKEN; no path -> /FIRST/TOKEN"""
    return "/".join(("", path.strip("/").split("/")[0] or first, token))
