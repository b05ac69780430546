"""The load generator, the containers it runs in, and what is computed from its answers."""
