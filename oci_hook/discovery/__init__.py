"""What GPUs and driver files this node has. No container start looks: it reads the inventory."""
