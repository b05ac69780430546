"""The NVIDIA runtime's way to request GPUs by mounts: /dev/null at FOLDER/ID for each GPU, or FOLDER/all, none, void; and
at FOLDER/imex/N for each IMEX channel.

An image cannot bring a mount, so these count as requests, unlike NVIDIA_VISIBLE_DEVICES.
https://docs.nvidia.com/datacenter/cloud-native/container-toolkit (accept-nvidia-visible-devices-as-volume-mounts)
"""

from oci_hook.core import value_parsers
from oci_hook.core.layout import VISIBLE_DIR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_hook.core.dialects import Row

FOLDER = VISIBLE_DIR
ROW: "Row" = ("devices", value_parsers.devices, {})
IMEX: "Row" = ("imex-channels", value_parsers.channels, {})
KEYS: "dict[str, Row]" = {}
ENV: dict[str, str] = {}
SAME = ()
