"""The patch of the webhook configurations, and a Secret that is damaged."""

import asyncio
import base64
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from oci_hook.kube.controller.controller import _present
from oci_hook.kube.controller.options import ControllerOptions
from oci_hook.kube.controller.trust import authority, certificates, own_secret
from oci_hook.kube.controller.trust.own_secret import Own

REPO = Path(__file__).resolve().parents[4]
NAMES = ("a.svc",)
GOOD, OTHER = (own_secret.renewed(Own(), NAMES, 1e6, 1e6, time.time(), bytes(range(64)), 0) for _ in range(2))
SERVING, ELSE = GOOD.certificates.serving, OTHER.certificates.serving


class Api:
    """A simulated API server that has the Secret alone."""

    def __init__(self, **text: str) -> None:
        data = own_secret.data(GOOD)
        changed = {key.replace("_", "."): base64.b64encode(value.encode()).decode() for key, value in text.items()}
        self.secret: dict[str, Any] = {"data": {**data, **changed}}

    async def get(self, path: str) -> Any:
        return self.secret if "/secrets/" in path else {"data": {}}

    async def put(self, path: str, body: Any) -> None:
        if "/secrets/" in path:
            self.secret = body


async def no_configuration(path: str, bundle: str) -> bool:
    return False


@pytest.mark.parametrize(
    "damage",
    [
        {"tls_key": SERVING.key[:100]},
        {"tls_key": ELSE.key},
        {"tls_crt": SERVING.certificate[:100]},
        {"tls_crt": ELSE.certificate},
        {"tls_crt": SERVING.certificate + ELSE.certificate[:100]},
        {"tls_crt": SERVING.certificate.rstrip()},
        {"ca_crt": GOOD.certificates.authority.certificate[:100]},
        {"ca_key": "x"},
        {"old-ca_crt": ELSE.certificate[:100]},
        {"next-ca_crt": ELSE.certificate[:100], "next-ca_key": ELSE.key},
    ],
)
def test_a_damaged_secret_ends_no_controller_and_the_leader_repairs_it(
    damage: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    api, leads, used = Api(**damage), [False], list[Own]()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    def use(own: Own) -> None:
        _present(tls, own.certificates)
        if bundle := own.certificates.bundle:
            ssl.create_default_context(cadata=bundle)
        used.append(own)

    options = ControllerOptions("0.0.0.0", 1, "gpu-hook", NAMES)
    made: Any = authority.Authority(api, options, use, lambda: leads[0], lambda: 0)  # type: ignore[arg-type]
    monkeypatch.setattr(made, "_configuration", no_configuration)
    asyncio.run(made.look())
    assert all(own.certificates.serving for own in used)
    leads[0] = True
    asyncio.run(made.look())
    now = used[-1].certificates
    assert certificates.renewed(now, NAMES, 1e6, time.time()) is now, "nothing is left to repair"


def test_a_configuration_gets_bundle_and_token_in_each_webhook_and_nothing_where_it_has_them() -> None:
    have: dict[str, Any] = {
        "metadata": {"name": "x", "resourceVersion": "3"},
        "webhooks": [
            {"clientConfig": {"service": {"name": "s", "namespace": "n", "path": "/pods"}}},
            {"clientConfig": {"url": "https://h:1/bindings/old", "caBundle": "eA=="}},
        ],
    }
    patch = authority.configuration_patch(have, "x", "tok", False)
    assert {(p["path"], p["value"]) for p in patch} == {
        ("/metadata/resourceVersion", "3"),
        ("/webhooks/0/clientConfig/caBundle", "eA=="),
        ("/webhooks/0/clientConfig/service/path", "/pods/tok"),
        ("/webhooks/1/clientConfig/url", "https://h:1/bindings/tok"),
    }
    have["webhooks"][0]["clientConfig"] = {"service": {"path": "/pods/tok"}, "caBundle": "eA=="}
    have["webhooks"][1]["clientConfig"]["url"] = "https://h:1/bindings/tok"
    assert authority.configuration_patch(have, "x", "tok", False) == []


def test_what_the_controller_writes_into_the_webhooks_is_not_in_the_manifest_and_needs_nothing_from_it() -> None:
    """Else each `kubectl apply` would take it away, and no pod could be made until the controller looks again."""
    have = yaml.safe_load((REPO / "packaging/kubernetes/webhooks.yaml").read_text())
    have["metadata"]["resourceVersion"] = "3"
    told = {(p["op"], p["path"]): p["value"] for p in authority.configuration_patch(have, "x", "tok", True)}
    assert {value for (_, path), value in told.items() if path.endswith("/caBundle")} == {"eA=="}
    paths = [told["add", f"/webhooks/{i}/clientConfig/service/path"] for i in range(3)]
    assert dict(zip((hook["name"] for hook in have["webhooks"]), paths, strict=True)) == {
        "pods.gpu-hook.io": "/pods/tok",
        "status.gpu-hook.io": "/pods/tok",
        "bindings.gpu-hook.io": "/bindings/tok",
    }
    for hook in have["webhooks"]:
        assert not {"path", "caBundle"} & {*hook["clientConfig"], *hook["clientConfig"]["service"]}
        assert "matchConditions" not in hook


def test_what_concerns_annotations_gets_a_condition_where_the_api_server_keeps_it() -> None:
    names = ("pods.gpu-hook.io", "status.gpu-hook.io", "bindings.gpu-hook.io")
    have: dict[str, Any] = {
        "metadata": {"name": "x", "resourceVersion": "3"},
        "webhooks": [
            {"name": name, "clientConfig": {"service": {"path": "/pods/tok"}, "caBundle": "eA=="}} for name in names
        ],
    }
    patch = authority.configuration_patch(have, "x", "tok", True)
    assert [p["path"] for p in patch[1:]] == ["/webhooks/0/matchConditions", "/webhooks/1/matchConditions"]
    assert authority.configuration_patch(have, "x", "tok", False) == []
    have["webhooks"][0]["matchConditions"] = have["webhooks"][1]["matchConditions"] = authority.CONDITION
    assert authority.configuration_patch(have, "x", "tok", True) == []
