"""Names and places that several parts must agree on: annotation keys, paths in the container, files of an install."""

PREFIX_KEY = "gpu-hook.io/"
MARKER = PREFIX_KEY + "grant"  # written by us into config.json: this bundle was edited, and for which grant
ALLOC = PREFIX_KEY + "alloc"  # reserved: the cluster scheduler's decision

# In the container. One directory, mounted read-only from PREFIX/CONTAINER_DIR, holds everything private.
PRIVATE = "/run/gpu-hook"
REAL_LIBCUDA = PRIVATE + "/driver/cuda"
REAL_LIBNVML = PRIVATE + "/driver/ml"
POLICY_PAGE = PRIVATE + "/policy"  # read-only file bind: the policy page, and after it the GPU page of each GPU
ACCOUNT_DIR = PRIVATE + "/account"  # a small tmpfs of the container's own; the shim creates ACCOUNT_FILE there
ACCOUNT_FILE = ACCOUNT_DIR + "/page"
SHARE_DIR = PRIVATE + "/share"  # N: everybody's slot files on the page's N-th GPU, read-only
SLOT_FILE = PRIVATE + "/slot"  # N: the container's own slot file on that GPU, read-write
SLOT_DIR = "slot"  # in a GPU's folder: the slot files
REQUEST_DIR = PRIVATE + "/request"  # /dev/null mounted at KEY=VALUE in it asks as an annotation does
VISIBLE_DIR = "/var/run/nvidia-container-devices"  # the NVIDIA runtime's: /dev/null at a GPU's name asks for the GPU
SIM_GPUS = "/dev/nvidia-sim"  # the files that are simulated GPUs (discovery/mark.py)
SIM_ROOT = "sim/root"  # below a prefix: where a simulator puts its driver root

# In an install prefix.
LIB_DIR = "lib/gpu-hook"  # byte-compiled oci_hook, started as /usr/bin/python3 -I -S PREFIX/lib/gpu-hook/...
SHIM_DIR = "lib/shim"  # libcuda.so.1, libnvidia-ml.so.1
CLOSED_DIR = "lib/private"  # root's alone (0700): what is below it is open to containers, and to nobody else
CONTAINER_DIR = CLOSED_DIR + "/container"  # the skeleton that becomes PRIVATE: empty files and folders to mount on
OPEN_DIR = CONTAINER_DIR + ACCOUNT_DIR[len(PRIVATE) :]  # the one folder of an install with OPEN_MODE
OPEN_MODE = 0o1777  # runc 1.1.5 gives a tmpfs the mode of the folder that it covers, whatever config.json says
SETTINGS_YAML = "etc/settings.yaml"
STATE_IN_USE = "etc/state_dir"  # the state directory that the install uses, one line

# In the state directory (tmpfs).
LEDGER_DIR = "ledger"  # lock, and one JSON file per grant
PAGES_DIR = "pages"  # KEY/policy per grant, as its container sees it; KEY/said: its policy page, for root alone
TOLD_DIR = "told"  # what containers are to be told (ledger/tell.py)
SHARE_STATE = "share"  # UUID/slot/NN: a tmpfs of its own per GPU
INVENTORY = "inventory.json"
TIERS = "tiers.json"  # what `gpu-hook gpus --probe` found
EVENTS = "events"  # lines of JSON; EVENTS.1 the older ones
AGENT_LOCK = "agent.lock"  # held by the one agent
STATE_OWNER = "owner"  # the prefix of the one install whose directory it is

# The owner of host files that containers see: no user, and no part of a range that a distribution gives out (systemd's
# UIDS-GIDS.md: nothing above 2^31). A lease (fcntl(2), F_SETLEASE) is for a file's owner, so not for container root.
PAGE_UID = 0xFFFF_FFF0

IMEX_CHANNEL = "/dev/nvidia-caps-imex-channels/channel"  # and its number, which is the minor one
NVIDIA_MAJOR = 195  # Documentation/admin-guide/devices.txt: 195 char = NVIDIA graphics; nvidiactl is minor 255
ENV_SET = (  # what we write into a container's env; a container's own values there are overwritten
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


def slot_file(slot: int) -> str:
    """The file of Share.slot `slot` (1 + its number) in the GPU's folder."""
    return f"{SLOT_DIR}/{slot - 1:02d}"
