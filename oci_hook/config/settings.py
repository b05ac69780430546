"""The compiled settings of an install: PREFIX/etc/settings.json -> Settings. Written by `gpu-hook settings compile`."""

import os

from oci_hook.core.layout import SETTINGS_JSON, SETTINGS_YAML
from oci_hook.core.rules import Rules
from oci_hook.core.value import Value
from oci_hook.errors import refuse
from oci_hook.oci import fastjson


class Settings(Value):
    """prefix: the install's root. runtime: the real runtime, absolute. driver_root: where the driver's files are.
    state_dir: tmpfs directory of ledger, pages and inventory. mode: "standalone" | "on-top" | "below"."""

    prefix: str
    mode: str = "standalone"
    runtime: str = "/usr/sbin/runc"
    python: str = "/usr/bin/python3"
    driver_root: str = "/"
    state_dir: str = "/run/gpu-hook"
    rules: Rules = Rules()
    stale: bool = False


def load(prefix: str) -> Settings:
    """Read the compiled settings. Raises SettingsError GH-501 when missing or not valid: the caller fails closed.

    `stale` is set when settings.yaml is newer than what was compiled (GH-502 is then a warning, not an error).
    """
    path = os.path.join(prefix, SETTINGS_JSON)
    try:
        with open(path, "rb") as f:
            st = os.fstat(f.fileno())
            if st.st_uid not in (0, os.geteuid()) or st.st_mode & 0o022:
                raise refuse("GH-501", f"settings {path} can be changed by others than root; chmod go-w, chown root")
            data = fastjson.loads(f.read())
        rules = data.pop("rules")
        rules["dialects"] = tuple(rules["dialects"])
        source = data.pop("source")
        data.pop("agent", None)  # read by agent/options.py
        settings = Settings(prefix=prefix, rules=Rules(**rules), **data)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as e:
        if not os.path.exists(os.path.join(prefix, SETTINGS_YAML)):
            text = f"no gpu-hook install in {prefix}: `gpu-hook install --prefix {prefix}` makes one; or name yours"
            raise refuse("GH-501", f"{text} with --prefix") from None
        why = e.strerror if isinstance(e, OSError) else e
        raise refuse("GH-501", f"settings {path}: {why}; run `gpu-hook settings compile --prefix {prefix}`") from None
    try:
        st = os.stat(os.path.join(prefix, SETTINGS_YAML))
        settings = settings.replace(stale=[st.st_size, st.st_mtime_ns] != source)
    except OSError:
        pass
    return settings
