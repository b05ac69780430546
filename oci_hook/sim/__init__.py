"""The simulated GPU: a driver root of our own over cards that live in shared memory."""
