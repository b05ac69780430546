"""The reporter's settings: the `agent.` lines of settings.yaml about the cluster."""

from oci_hook.core.value import Value
from oci_hook.install import agent_settings

NONE = "none"


class NodeSettings(Value):
    """kubeconfig, controller_token: a path or "none". node: the node's name, "none" to take it from variable or credential.
    namespace: of the controller. device_plugins: the kubelet's folder."""

    kubeconfig: str = NONE
    node: str = NONE
    namespace: str = "gpu-hook"
    controller_token: str = NONE
    device_plugins: str = "/var/lib/kubelet/device-plugins"


def load(prefix: str) -> NodeSettings:
    """Raises SettingsError GH-501."""
    said = agent_settings.load(prefix)
    return NodeSettings(**{name: said[name] for name in NodeSettings.FIELDS if name in said})
