"""The known state of the cluster, and the choice of a place for one pod. Pure."""
