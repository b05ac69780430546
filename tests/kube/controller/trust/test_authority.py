"""The patch of the webhook configurations."""

from typing import Any

from oci_hook.kube.controller.trust import authority


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
