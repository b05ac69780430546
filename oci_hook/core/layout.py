"""Names and paths that several parts must agree on: annotation keys, paths in the container, files of an install."""

DEFAULT_PREFIX = "/opt/gpu-hook"  # of an install

PREFIX_KEY = "gpu-hook.io/"
MARKER = PREFIX_KEY + "grant"  # written by us into config.json: the key of the grant for which the bundle was edited
ALLOC = PREFIX_KEY + "alloc"  # the decision of the cluster's controller (core/decision.py)
ASKED = PREFIX_KEY + "asked"  # the controller has read this pod
NODE_PLACEMENT = PREFIX_KEY + "node-placement"  # the controller's order of nodes
NO_REQUEST = (MARKER, ALLOC, ASKED, NODE_PLACEMENT)  # keys that ask a node for nothing

# In the container. One directory, mounted read-only from PREFIX/CONTAINER_DIR, holds everything private.
PRIVATE = "/run/gpu-hook"
REAL_LIBCUDA = PRIVATE + "/driver/cuda"
REAL_LIBNVML = PRIVATE + "/driver/ml"
POLICY_PAGE = PRIVATE + "/policy"  # read-only file bind: the policy page, and after it the GPU page of each GPU
ACCOUNT_DIR = PRIVATE + "/account"  # a small tmpfs that only this container has; the shim creates ACCOUNT_FILE there
ACCOUNT_FILE = ACCOUNT_DIR + "/page"
SHARE_DIR = PRIVATE + "/share"  # SHARE_DIR/N: the slot files of all containers on the N-th GPU of the page, read-only
SLOT_FILE = PRIVATE + "/slot"  # SLOT_FILE/N: the container's own slot file on that GPU, read-write
SLOT_DIR = "slot"  # below a GPU's folder: the folder of slot files
REQUEST_DIR = PRIVATE + "/request"  # /dev/null mounted at KEY=VALUE in it counts as the annotation KEY=VALUE
VISIBLE_DIR = (
    "/var/run/nvidia-container-devices"  # of the NVIDIA runtime: /dev/null mounted at a GPU's name asks for the GPU
)
SIM_GPUS = "/dev/nvidia-sim"  # the files that are simulated GPUs (discovery/mark.py)
SIM_ROOT = "sim/root"  # below a prefix: where a simulator puts its driver root

# In an install prefix.
LIB_DIR = "lib/gpu-hook"  # byte-compiled oci_hook, started as python3 -I -S PREFIX/lib/gpu-hook/...
OWN_PYTHON = "python-*"  # below lib, and beside a package's oci_hook: the Python that packages carry
OWN_PYTHON_HOT = "hot"  # in it: its files that an install has, one on each line
OWN_PYTHON_PROGRAM = "bin/python3"  # in it
OWN_PYTHON_LOADER = "lib/gpu-hook-python"  # in it; without it, the launcher takes the machine's
SYSTEM_PYTHON = "/usr/bin/python3"  # of installs without one
SHIM_DIR = "lib/shim"  # libcuda.so.1, libnvidia-ml.so.1
CLOSED_DIR = "lib/private"  # mode 0700, so that only root and containers, which get it mounted, reach what is below
CONTAINER_DIR = CLOSED_DIR + "/container"  # the skeleton that becomes PRIVATE: empty files and folders to mount on
OPEN_DIR = CONTAINER_DIR + ACCOUNT_DIR[len(PRIVATE) :]  # the only folder of an install with OPEN_MODE
OPEN_MODE = 0o1777  # runc 1.1.5 gives a tmpfs the mode of the folder that it covers, whatever config.json says
SETTINGS_YAML = "etc/settings.yaml"
CLUSTER_SETTINGS = "etc/cluster.yaml"  # the settings that the cluster has for this node; the reporter writes it
CLUSTER_KEYS = "etc/cluster.json"  # the node's name and keys in its cluster; the reporter writes it
INSTALLED = LIB_DIR + "/installed"  # the files that the install laid, one path below the prefix on each line
STATE_IN_USE = "etc/state_dir"  # the state directory that the install uses, one line

# In the state directory (tmpfs).
LEDGER_DIR = "ledger"  # lock, KEY.json per grant, UUID.return: a lock per GPU that memory comes back to
PAGES_DIR = "pages"  # KEY/policy per grant, as its container sees it; KEY/copy: a copy for root alone
MESSAGES_DIR = "messages"  # to containers, until they are delivered (ledger/messages.py)
SHARE_STATE = "share"  # UUID/slot/NN: a tmpfs of its own per GPU
INVENTORY = "inventory.json"
TIERS = "tiers.json"  # findings of `gpu-hook gpus --probe`
UNLISTED = "unlisted.json"  # MiB by UUID that the agent found in use by nobody who can be told (ledger/inventory.py)
EVENTS = "events"  # lines of JSON; EVENTS.1 the older ones
CLAIMS_DIR = "claims"  # UID.json: what a prepared ResourceClaim gives (ledger/resource_claims.py)
BOUNDARY_DIR = "boundary"  # KEY: which limits the driver was told for this grant; lock (boundary/limit_records.py)
BOUNDARY_SOCKET = "boundary.sock"  # boundary/server.py listens there
AGENT_SOCKET = ".sock"  # after the state directory's name, beside it: only root can enter the directory itself
AGENT_LOCK = "agent.lock"  # locked by the agent, so that only one runs
STATE_OWNER = "owner"  # the prefix of the one install whose directory it is

# The owner of host files that containers see: not a user, and not in a range that distributions assign (systemd's
# UIDS-GIDS.md: none above 2^31). Only a file's owner may take a lease on it (fcntl(2), F_SETLEASE), so container root may not.
PAGE_UID = 0xFFFF_FFF0

IMEX_CHANNEL = "/dev/nvidia-caps-imex-channels/channel"  # followed by the channel's number, which is the minor number
# Driver roots of installers that run in containers or images: the GPU Operator's, GKE's, COS's own, Talos' extension.
DRIVER_ROOTS = ("/run/nvidia/driver", "/home/kubernetes/bin/nvidia", "/var/lib/nvidia", "/usr/local/glibc")
NVIDIA_MAJOR = 195  # Documentation/admin-guide/devices.txt: 195 char = NVIDIA graphics; nvidiactl is minor 255
DRI = "/dev/dri/"  # GPUs of other makers have nodes there as well
ENV_SET = (  # written into a container's environment, over the container's own values
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_IMEX_CHANNELS",
    "T9K_GPU_PERCENT",
    "T9K_GPU_MEMORY",
    "GPU_HOOK_MEMORY_MIB",
    "GPU_HOOK_COMPUTE",
    "GPU_HOOK_POLICY",
    "GPU_HOOK_CLASS",
    "TRITON_LIBCUDA_PATH",
)
# Written beside the NVIDIA runtime only (core/nvidia_runtime_mode.py). Its hook takes the first two before the other two.
MEMORY_WORDS = (
    "NVIDIA_GPU_MEMORY_REQUESTS",
    "NVIDIA_GPU_MEMORY_LIMITS",
    "NVIDIA_GPU_MEMORY_REQUEST",
    "NVIDIA_GPU_MEMORY_LIMIT",
)


def slot_file(slot: int) -> str:
    """The path of a slot file in its GPU's folder. slot: as Share.slot has it, 1 + its number."""
    return f"{SLOT_DIR}/{slot - 1:02d}"
