"""Python loads this by itself at its start: the wheels below /wheels are site folders, as if pip had installed them.

PYTHONPATH alone would not do: packages look for NVIDIA's libraries in site folders, and only these have `.pth` files.
"""

import glob
import site
import sys

before = list(sys.path)
for prefix in sorted(glob.glob("/wheels/*")):
    site.PREFIXES.insert(0, prefix)
    for folder in site.getsitepackages([prefix]):
        site.addsitedir(folder)
sys.path[:] = [path for path in sys.path if path not in before] + before  # before what this Python itself has installed
