"""The cluster part: pure decisions about pods, nodes and GPUs (placing, preemption, answers, moves, manifests), and the three
programs that act on them: `controller` for the cluster; `reporter` on each node, or `dra` where shares are ResourceClaims. Only these
three and `link`, their way to the API server, have I/O. Floors are in pyproject.toml."""
