"""Holds some memory of the first GPU until it is killed. usage: hold.py MIB"""

import ctypes
import sys
import time

cuda = ctypes.CDLL("libcuda.so.1")
context, at = ctypes.c_void_p(), ctypes.c_uint64()
calls = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)]
calls.append(cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(int(sys.argv[1]) << 20)))
with open("/tmp/holds", "w") as f:
    f.write(f"{calls}\n")
time.sleep(600)
