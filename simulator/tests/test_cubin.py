"""Cubins as NVIDIA's own ptxas writes them: their kernels and variables are found by name."""

import subprocess
from pathlib import Path

from testbed import pinned as fetch
from testbed.sim.gpus import Sim

PTX = """
.version 8.0
.target sm_90
.address_size 64
.visible .const .align 4 .b8 fixed[64];
.visible .global .align 4 .b8 table[100];
.visible .global .align 4 .b8 filled[2000000] = {1};
.visible .entry first_700us(.param .u64 p) { ret; }
.visible .entry second() { .reg .b64 r; mov.u64 r, table; st.global.u32 [r], 1; ret; }
"""
CODE = """
context(); m, f, at, size, n = c_void_p(), c_void_p(), c_uint64(), c_size_t(), c_uint()
before = free_bytes()
print(code("cuModuleLoad", byref(m), PATH))
print([code("cuModuleGetFunction", byref(f), m, name) for name in (b"first_700us", b"second", b"third")])
for name in (b"fixed", b"table", b"filled", b"second"):
    size.value = 0; print(code("cuModuleGetGlobal_v2", byref(at), byref(size), m, name), size.value)
cuda.cuModuleGetFunctionCount(byref(n), m); print(n.value, (before - free_bytes()) >> 20)
cuda.cuModuleUnload(m); print(before - free_bytes())
"""


def test_kernels_and_variables_of_a_cubin(sim: Sim, tmp_path: Path) -> None:
    ptxas = fetch.wheels("cuda-12-compilers") / "nvidia/cuda_nvcc/bin/ptxas"
    (tmp_path / "code.ptx").write_text(PTX)
    subprocess.run([ptxas, "-arch=sm_90", "-o", tmp_path / "code.cubin", tmp_path / "code.ptx"], check=True)
    out = sim.python(f"PATH = {str(tmp_path / 'code.cubin').encode()!r}\n{CODE}").splitlines()
    assert out == ["0", "[0, 0, 500]", "0 64", "0 100", "0 2000000", "500 0", "2 1", "0"]
