"""The node agent: reconciles, audits, measures. Optional: no container needs it to start."""
