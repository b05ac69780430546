"""Asks each NVML function that the shim answers: before NVML is there, of what is no device, with a NULL in each place, and
of the GPU, which may be lost. Says each answer as a line of JSON. Runs in a box, bare and through the shim.
"""

import ctypes
import json
import sys
from ctypes import byref, c_int, c_uint, c_uint64, c_void_p
from typing import Any

names = sys.argv[2:]
lib = ctypes.CDLL("libnvidia-ml.so.1")
OUT = "a place for an answer"
COUNT = "a place for a count"
KINDS: "dict[str, tuple[Any, ...]]" = {  # arguments behind the device
    "nvmlDeviceGetMemoryInfo": (OUT,),
    "nvmlDeviceGetMemoryInfo_v2": (OUT,),
    "nvmlDeviceGetBAR1MemoryInfo": (OUT,),
    "nvmlDeviceGetTemperatureV": (OUT,),
    "nvmlDeviceGetRunningProcessDetailList": (OUT,),
    "nvmlDeviceGetProcessUtilization": (OUT, COUNT, c_uint64(0)),
    "nvmlDeviceGetProcessesUtilizationInfo": (OUT,),
    "nvmlDeviceGetUtilizationRates": (OUT,),
    "nvmlDeviceGetSamples": (c_int(1), c_uint64(0), OUT, COUNT, OUT),
    "nvmlDeviceGetAccountingPids": (COUNT, OUT),
    "nvmlDeviceGetAccountingStats": (c_uint(1), OUT),
    "nvmlDeviceGetAccountingStats_v2": (OUT,),
}
LIST = (COUNT, OUT)
# The first word of a structure: its size and version, as NVML's headers define it.
VERSIONS = {
    "nvmlDeviceGetMemoryInfo_v2": 0x2000028,
    "nvmlDeviceGetTemperatureV": 0x100000C,
    "nvmlDeviceGetRunningProcessDetailList": 0x1000018,
    "nvmlDeviceGetProcessesUtilizationInfo": 0x1000018,
}


def ask(name: str, device: Any, null: "int | None") -> int:
    """The function's answer; null: the argument that is NULL in place of a place."""
    given = []
    for i, kind in enumerate(KINDS.get(name, LIST)):
        if kind not in (OUT, COUNT):
            given.append(kind)
        elif i == null:
            given.append(None)
        else:
            place = (c_uint * 4096)(64 if kind == COUNT else VERSIONS.get(name, 0))
            given.append(place)
    return int(getattr(lib, name)(device, *given))


def state(word: str, device: Any, nulls: bool) -> None:
    """Each function, of this device."""
    for name in names:
        if not hasattr(lib, name):
            continue
        answers = {"right": ask(name, device, None)}
        for i, kind in enumerate(KINDS.get(name, LIST)):
            if nulls and kind in (OUT, COUNT) and not (kind == OUT and COUNT in KINDS.get(name, LIST)):
                answers[f"NULL {i}"] = ask(name, device, i)
        print(json.dumps([word, name, answers]), flush=True)


garbage = ctypes.create_string_buffer(4096)
state("not there", c_void_p(0), True)
assert lib.nvmlInit_v2() == 0
state("no device", c_void_p(0), True)
state("another thing", garbage, True)
gpu = c_void_p()
lost = lib.nvmlDeviceGetHandleByIndex_v2(0, byref(gpu))
state(sys.argv[1], gpu, True)
assert lib.nvmlShutdown() == 0
state("no more there", gpu, True)
