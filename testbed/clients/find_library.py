"""How programs that look for libcuda by ctypes find it: by name at once; by find_library once ldconfig has run."""

import ctypes
import ctypes.util
import subprocess

print(ctypes.CDLL("libcuda.so.1").cuInit(0))
print(ctypes.util.find_library("cuda"))
subprocess.run(["/sbin/ldconfig"], check=True)
print(ctypes.util.find_library("cuda"))
print(ctypes.CDLL(ctypes.util.find_library("cuda")).cuInit(0))
