"""tinygrad's CUDA backend with its PTX renderer. Kernels do nothing on a simulated GPU, so only copies come back as sent."""

import os

os.environ |= {"DEV": "CUDA:PTX", "CACHELEVEL": "0"}

from steps import outcome, said
from tinygrad import Device, Tensor, TinyJit, dtypes

MIB = 1 << 20

outcome("device", lambda: type(Device["CUDA"]).__name__)
outcome("arch", lambda: Device["CUDA"].renderer.target.arch)
outcome("devices", lambda: Device["CUDA"].count())
outcome("to the GPU and back", lambda: Tensor(list(range(1000)), device="CUDA").realize().tolist() == list(range(1000)))
outcome("bytes", lambda: Tensor(bytes(range(256)) * 4096, device="CUDA").realize().data().tobytes()[-3:].hex())
for name, work in (
    ("add", lambda a, b: a + b),
    ("matmul", lambda a, b: a @ b),
    ("softmax", lambda a, b: (a @ b).softmax()),
    ("sum", lambda a, b: (a * b).sum()),
    ("convolution", lambda a, b: a.reshape(1, 1, 64, 64).conv2d(b[:3, :3].reshape(1, 1, 3, 3))),
    ("half", lambda a, b: (a.half() @ b.half()).float()),
):
    a, b = (
        Tensor.ones(64, 64, device="CUDA").contiguous().realize(),
        Tensor.ones(64, 64, device="CUDA").contiguous().realize(),
    )
    outcome(f"kernel: {name}", lambda work=work, a=a, b=b: str(work(a, b).realize().shape))


@TinyJit
def jitted(x: Tensor) -> Tensor:
    return ((x * 2).contiguous() + 1).contiguous().realize()  # two kernels: a graph


for i in range(5):
    outcome(f"jit, call {i}", lambda: str(jitted(Tensor.ones(256, 256, device="CUDA").contiguous().realize()).shape))

allocator = Device["CUDA"].allocator
held = []
why = ""
while len(held) < 1000:
    try:
        held.append(allocator.alloc(64 * MIB))
    except Exception as e:
        why = f"{type(e).__name__}: {e}"
        break
said("MiB until refused", 64 * len(held))
said("refused", why.partition("\n")[0])
for one in held:
    allocator.free(one, 64 * MIB)
allocator.free_cache()
outcome("after that", lambda: Tensor.zeros(64 * MIB, dtype=dtypes.uint8, device="CUDA").contiguous().realize().nbytes())
outcome("synchronize", lambda: Device["CUDA"].synchronize())
