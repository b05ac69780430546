"""A PyTorch program that trains or decodes as it is told: one command a line on standard input, one line of JSON in answer.

usage: torch_load.py train|ahead|decode

run SECONDS   train: steps of a small transformer. decode: tokens of one sequence that grows, so that no two steps have the
              same shapes. ahead: train, but the program never waits for the GPU before the end. {"steps": N, "seconds": S,
              "in_steps": S of it spent in steps, not in waiting for the GPU, "processor": S}
stuck SECONDS launch a kernel that long, and do not wait for it
hold MIB      keep that much memory with a pattern in it
check         whether the pattern is still there
"""

import json
import sys
import time
from typing import Any

import torch

LAYERS, WIDTH, HEADS, TOKENS = 12, 1024, 16, 1024


class Train:
    def __init__(self) -> None:
        layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True, dropout=0.0)
        self.model = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).cuda().bfloat16()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        self.x = torch.randn(8, TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16)

    def step(self) -> None:
        self.model(self.x).float().pow(2).mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Decode:
    """Attention over a cache that grows by one row a step, and starts anew after TOKENS."""

    def __init__(self) -> None:
        self.layers = [
            [torch.randn(WIDTH, n * WIDTH, device="cuda", dtype=torch.bfloat16) * 0.02 for n in (3, 1, 4)]
            for _ in range(LAYERS)
        ]
        self.back = [torch.randn(4 * WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16) * 0.02 for _ in range(LAYERS)]
        self.length = 0

    def step(self) -> None:
        with torch.no_grad():
            if self.length % TOKENS == 0:
                empty = torch.zeros(4, HEADS, 0, WIDTH // HEADS, device="cuda", dtype=torch.bfloat16)
                self.cache = [(empty, empty) for _ in self.layers]
            x = torch.randn(4, 1, WIDTH, device="cuda", dtype=torch.bfloat16)
            for i, (qkv, out, up) in enumerate(self.layers):
                q, k, v = (t.view(4, 1, HEADS, -1).transpose(1, 2) for t in (x @ qkv).chunk(3, -1))
                keys, values = (torch.cat((a, b), 2) for a, b in zip(self.cache[i], (k, v), strict=True))
                self.cache[i] = keys, values
                heads = torch.nn.functional.scaled_dot_product_attention(q, keys, values)
                x = torch.nn.functional.layer_norm(x + heads.transpose(1, 2).reshape(4, 1, WIDTH) @ out, (WIDTH,))
                x = torch.nn.functional.layer_norm(x + torch.relu(x @ up) @ self.back[i], (WIDTH,))
            self.length += 1
            x[0, 0, 0].item()  # the next token depends on it


class Program:
    def __init__(self, kind: str) -> None:
        self.load: Train | Decode = Decode() if kind == "decode" else Train()
        self.waits = kind == "train"  # a loop that reads its loss now and then
        self.held: list[Any] = []

    def run(self, seconds: str) -> dict[str, Any]:
        for _ in range(2):
            self.load.step()
        torch.cuda.synchronize()
        begin, steps, inside, processor = time.monotonic(), 0, 0.0, time.process_time()
        while time.monotonic() - begin < float(seconds):
            started = time.monotonic()
            self.load.step()
            inside += time.monotonic() - started
            steps += 1
            if self.waits and steps % 2 == 0:
                torch.cuda.synchronize()
        torch.cuda.synchronize()
        processor = time.process_time() - processor
        return {"steps": steps, "seconds": time.monotonic() - begin, "in_steps": inside, "processor": processor}

    def stuck(self, seconds: str) -> dict[str, Any]:
        torch.cuda._sleep(int(float(seconds) * 1.7e9))  # type: ignore[no-untyped-call]  # clocks of an H100
        return {}

    def hold(self, mib: str) -> dict[str, Any]:
        self.held = [torch.full((1 << 20,), i & 0xFF, dtype=torch.uint8, device="cuda") for i in range(int(mib))]
        return {"allocated_mib": torch.cuda.memory_allocated() >> 20}

    def check(self) -> dict[str, Any]:
        return {"right": all(bool((t == (i & 0xFF)).all()) for i, t in enumerate(self.held))}


def main(kind: str) -> None:
    program = Program(kind)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        if not line.strip():
            continue
        name, *words = line.split()
        try:
            answer = getattr(program, name)(*words)
        except RuntimeError as e:
            answer = {"problem": str(e)[:300]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
