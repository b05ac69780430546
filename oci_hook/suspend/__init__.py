"""Suspends containers that run, by moving their GPU memory to the host's, and resumes them."""
