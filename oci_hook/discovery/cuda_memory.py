"""Asks libcuda for each GPU's memory and prints it as JSON. A program of its own, as a driver call may hang.

usage: python -m oci_hook.discovery.cuda_memory LIBCUDA
"""

import ctypes
import json
import sys


def main(library: str) -> dict[str, object]:
    """{"memory": {UUID: bytes}} or {"error": why}; numbers and names as in the CUDA driver API."""
    try:
        cuda = ctypes.CDLL(library)
        code = cuda.cuInit(0)
        count = ctypes.c_int()
        code = code or cuda.cuDeviceGetCount(ctypes.byref(count))
        memory = {}
        for ordinal in range(count.value if code == 0 else 0):
            raw = ctypes.create_string_buffer(16)
            total = ctypes.c_size_t()
            code = cuda.cuDeviceGetUuid(raw, ordinal) or cuda.cuDeviceTotalMem_v2(ctypes.byref(total), ordinal)
            if code:
                break
            h = raw.raw.hex()
            memory[f"GPU-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"] = total.value
        return {"error": f"CUDA error {code}"} if code else {"memory": memory}
    except (OSError, AttributeError) as e:
        return {"error": str(e)}


if __name__ == "__main__":
    json.dump(main(sys.argv[1]), sys.stdout)
