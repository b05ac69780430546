"""The launcher starts this file as `python3 -I -S PREFIX/lib/gpu-hook/PROGRAM.py ARGS`; PROGRAM is runtime or hook.

It is short, since Python compiles it at every start. All else is in load.py, which the pack has compiled.
"""

import gc
import marshal
import posix
import sys
from _frozen_importlib_external import MAGIC_NUMBER

gc.disable()  # a start makes no garbage that is worth a look, and a tenth of its time would go into looks
folder = sys.argv[0].rpartition("/")[0]
opened = None
try:
    pack = posix.open(f"{folder}/{sys.implementation.cache_tag}.pack", posix.O_RDONLY | posix.O_CLOEXEC)
    st, head = posix.fstat(pack), posix.read(pack, len(MAGIC_NUMBER) + 4)
    if st.st_uid not in (0, posix.geteuid()) or st.st_mode & 0o022 or not head.startswith(MAGIC_NUMBER):
        raise ValueError("not to be used")
    size = int.from_bytes(head[-4:], "little")
    index = marshal.loads(posix.read(pack, size))
    at, length = index[1]["load.py"]
    loader = marshal.loads(posix.pread(pack, length, len(head) + size + at))
    opened = pack, index
except Exception:  # load.py finds out what is wrong with the pack, and says so
    with open(f"{folder}/load.py") as f:
        loader = compile(f.read(), f"{folder}/load.py", "exec")
exec(loader, {"__name__": "__main__", "opened": opened})
# The launcher looks for the last line: Python would run a file that was cut short, and might end with success.
# end
