"""Rules that judge what was seen of containers and GPUs. Pure: the other rooms bring the facts and act on the verdict."""
