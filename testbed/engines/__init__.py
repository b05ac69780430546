"""Real container engines in a hideout of their own."""
