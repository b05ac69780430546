"""The ledger of this node: which container has which share of a GPU, when a grant ends, and messages to containers."""
