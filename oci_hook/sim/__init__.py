"""The simulated GPU: a driver root of our own over GPUs that live in shared memory."""
