"""`gpu-hook controller`: the cluster's side of gpu-hook. See docs/internals/cluster.md and controller.py."""
