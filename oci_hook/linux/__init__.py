"""One file per kernel interface, with functions named after the system calls. Nothing here knows GPUs or containers."""
