"""Simulated GPUs for gpu-hook: a driver root of our own over GPUs that live in shared memory.

The product finds the root by its mark (`driver_root.make`) and knows nothing else of this package.
"""

__version__ = "0.1.0"
