"""The cluster part: pure decisions about pods, nodes and GPUs (placing, preemption, answers, moves, manifests), and the two programs
that act on them: `controller` for the cluster, `reporter` on each node. Only these two have I/O. Floors are in pyproject.toml."""
