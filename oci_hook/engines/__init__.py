"""Registration: the install prefix and, one file each, the container engines."""
