"""The node's GPUs and driver files. No container start looks: it reads the inventory."""
