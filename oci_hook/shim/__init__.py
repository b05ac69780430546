"""The stand-in libraries, in C; build.py compiles them."""
