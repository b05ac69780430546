"""The native launcher: C source and how to compile it. Decides whether a runtime call needs Python at all."""
