"""The shim libraries, in C; build.py compiles them."""
