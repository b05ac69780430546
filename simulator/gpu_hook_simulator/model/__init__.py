"""The compute-sharing model: one process, virtual time, the shipped decide(). Its C is built by build.py."""
