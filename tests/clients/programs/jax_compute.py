"""JAX: compiled functions, which XLA and ptxas make for the GPU; graphs of kernels; the limit within a function."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from steps import outcome, said

MIB = 1 << 20


def shape(step: str, work: Callable[[], Any]) -> None:
    """Kernels do nothing on a simulated GPU, so shapes are all that can be told."""
    outcome(step, lambda: str(jax.tree.map(lambda x: (x.shape, str(x.dtype)), jax.block_until_ready(work()))))


def refused(step: str, work: Callable[[], Any]) -> None:
    try:
        jax.block_until_ready(work())
        said(step, "failed: it was not refused")
    except Exception as e:
        said(
            step, f"{type(e).__name__}: " + re.sub(r"[\d.]+ ?(?:[KMG]i?B|bytes)| \[.*", "#", str(e).splitlines()[0])
        )  # its tags come in any order


def large(n: int) -> Callable[[jax.Array], jax.Array]:
    """A function with a temporary of n MiB."""
    return jax.jit(lambda x: jnp.sort(jnp.broadcast_to(x, (n, MIB // 4)) + x, axis=0)[-1])


x = jnp.ones(1024)
said("backend", jax.default_backend())
shape("jit", lambda: jax.jit(lambda x: x * 2 + 1)(x))
shape("grad", lambda: jax.grad(lambda x: (jnp.sin(x) ** 2).sum())(x))
shape("vmap", lambda: jax.vmap(lambda row: row - row.mean())(jnp.ones((16, 64))))
shape("scan", lambda: jax.lax.scan(lambda c, y: (c + y, c * y), 0.0, x))
shape("loop", lambda: jax.jit(lambda x: jax.lax.fori_loop(0, 50, lambda i, y: y * 1.01 + i, x))(x))
shape("random", lambda: jax.random.normal(jax.random.key(1), (128,)))
shape("gather and scatter", lambda: x.at[jnp.arange(10)].add(x[5:15]))
shape("donated", lambda: jax.jit(lambda x: x + 1, donate_argnums=0)(jnp.ones(1024)))
shape("fft of the host's data", lambda: jax.device_put(np.fft.fft(np.ones(64))))
outcome("callback", lambda: jax.jit(lambda x: jax.debug.callback(lambda y: None, x))(x))
outcome("memory of a function", lambda: jax.jit(lambda x: x @ x.T).lower(jnp.ones((8, 8))).as_text()[:6])
refused("a temporary of 16 GiB", lambda: large(16384)(jnp.ones(MIB // 4)))
shape("a function after it", lambda: jax.jit(lambda x: x * 3)(x))
shape("a temporary of 64 MiB", lambda: large(64)(jnp.ones(MIB // 4)))
outcome("on each GPU", lambda: [jax.device_put(1, d).devices().pop().id for d in jax.devices()])
