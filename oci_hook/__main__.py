"""`python -m oci_hook` is the `gpu-hook` command."""

from oci_hook.cli.main import main

if __name__ == "__main__":
    main()
