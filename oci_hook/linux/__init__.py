"""One file per kernel interface, functions named as the system call; knows no GPU and no container."""
