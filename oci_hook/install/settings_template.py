"""The settings.yaml of a new install: every setting with its default, so that the file documents itself."""

from oci_hook.config.flat_yaml import quoted
from oci_hook.core.layout import DEFAULT_PREFIX

TEMPLATE = """\
# Settings of this gpu-hook install: lines of key: value. A change is in effect when the next container starts; only
# state_dir is changed with `gpu-hook settings set state_dir=DIR --prefix {prefix}`.
# `gpu-hook settings check` says what is wrong. What each setting means and its bounds: docs/reference/settings.md

# standalone: gpu-hook brings the driver files itself.
# on-top: gpu-hook calls the NVIDIA runtime (set `runtime` to it).  below: the NVIDIA runtime calls gpu-hook.
mode: {mode}

# The real runtime that makes the containers; an absolute path, never gpu-hook itself.
runtime: {runtime}

# For the few calls that ask for a GPU. auto: the Python that came with gpu-hook (with a checkout none did: /usr/bin/python3).
# Or the path of another one, 3.10 or newer; no packages are used.
python: {python}

# Where the NVIDIA driver's files are. With /, also in the places of driver containers and installers: /run/nvidia/driver and such.
driver_root: {driver_root}

# Ledger, pages and inventory; on tmpfs, so that a reboot empties it as it ends the containers.
state_dir: {state_dir}

# none, or qgpu: shares as TKE's qGPU has them. Its memory_min, memory_step, compute_step and memory_per_share then hold
# instead of the defaults below.
profile: none

# Who gets idle compute where a container asks for compute and names no policy: burst-share (bs), fixed-share (fs),
# best-effort (be), or auto: burst-share, and best-effort with profile qgpu.
default_policy: auto

# Which GPU when several fit: binpack (the fullest), spread (the emptiest), or by-class: spread for class online,
# which should meet few others, and binpack for the rest.
placement: by-class

# What a container gets that asks for a GPU, but neither for memory nor for compute:
# exclusive (alone on it) or shared (without limits, beside others).
whole_gpus: exclusive

# Memory as 4Gi, 512Mi or a number of MiB; compute in per cent.
memory_reserve: 0         # of each GPU, never granted; also in per cent: 10%
memory_step: 1            # shares are multiples of this
memory_min: 1             # and at least this
compute_step: 1
max_shares_per_gpu: 64
memory_per_share: 0       # 4Gi: at most 4 containers share a GPU of 16 GiB; 0: no such bound

# How long a container still has the GPU to itself against lower classes once its work is done: adaptive (learned
# from its own gaps, mostly about 2ms) or a time, as 100ms. For containers that start from now on.
linger: adaptive

# What the compute of a container of class online is: booking (containers of class online compete freely; what they ask
# for is kept free of guarantees of others) or share (as in the other classes). For containers that start from now on.
online_compute: booking

# Who holds the memory limits: the shim in the container, and with driver 615 or newer the driver itself as well.
# auto: the driver where it can. driver: a share that cannot have the driver's limit is refused. shim: the shim alone.
boundary: auto
driver_limit_extra: 0     # of memory, by which the driver's limit is above the share
oversubscribe: 1.0        # to 10.0: how many times a GPU's memory the limits may be where containers request less; the agent makes room
memory_wait: 600          # seconds that an allocation waits for room there; 0: it fails at once
memory_turn: 30           # seconds that containers of one class keep such a GPU in turn

# true: NVIDIA_VISIBLE_DEVICES, T9K_GPU_* and GPU_HOOK_* in a container's environment ask for GPUs as annotations do.
# Any image can set them, so this is for engines without annotations (docker before 24) and images you trust.
trust_env: false

# Other systems' words that are understood as well: of t9k, qgpu, gpu-manager, hami, kai, nvidia-volumes, nvidia.
# qgpu needs qgpu_memory_unit: MiB or GiB, as your manifests mean qgpu-memory.
dialects: [t9k, gpu-manager, hami, kai, nvidia-volumes, nvidia]
qgpu_memory_unit: none

# A container that seems to ask for a GPU in words that are not understood (gpuhook.io/memory): refuse, warn, or auto:
# refuse where gpu-hook was chosen by name (--runtime, RuntimeClass), warn where it is an engine's default or a hook.
near_misses: auto

# A node of a Kubernetes cluster with gpu-hook's controller: off; local (what the controller decided is verified, other
# containers are placed by this node); required (no valid decision, no start; static pods excepted).
cluster: "off"

# The node agent (`gpu-hook agent`, not needed by containers; restart it after a change); docs/guide/agent.md.
agent.address: 127.0.0.1:9409   # web page and metrics; or none. Another address than loopback needs agent.token_file
agent.token_file: none          # a file that root alone can read; every request must carry its first line
agent.textfile: none            # a *.prom file in node_exporter's textfile directory
agent.group: none               # whose members may ask the agent by `gpu-hook ps`, `top`, `why`, `events`, whoever may read the page
agent.policy: protect           # a cheat: protect (kill who takes what others were granted), report, freeze or kill
agent.tolerance: 256Mi          # how far a container may be above its memory limit before that is a finding
agent.compute_tolerance: 15     # how many per cent of a GPU it may be above its ceiling; 100 finds nobody
agent.interval: 5               # seconds between two looks at the GPUs

# The agent's reporter, which runs where `cluster` is not off.
agent.kubeconfig: none          # of the kubelet, such as /etc/kubernetes/kubelet.conf; none: the pod's service account
agent.node: none                # this node's name in the cluster; none: as the credential or the variable NODE_NAME says
agent.namespace: gpu-hook       # of gpu-hook's controller
agent.controller_token: none    # the file of a service account's token with the audience gpu-hook-controller
agent.device_plugins: /var/lib/kubelet/device-plugins
"""


def default_settings_yaml(
    prefix: str = DEFAULT_PREFIX,
    mode: str = "standalone",
    runtime: str = "/usr/sbin/runc",
    python: str = "auto",
    driver_root: str = "/",
    state_dir: str = "/run/gpu-hook",
) -> str:
    """The commented file, with these values; paths are quoted where they need it. Raises ValueError for a path that no
    line can hold."""
    values = {
        "mode": mode,
        "runtime": quoted(runtime),
        "python": quoted(python),
        "driver_root": quoted(driver_root),
        "state_dir": quoted(state_dir),
    }
    return TEMPLATE.format(prefix=prefix, **values)
