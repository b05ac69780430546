"""Directories of root alone, and a lock file with a deadline."""

import _signal  # type: ignore[import-not-found]  # `signal` itself imports enum
import _thread
import fcntl
import os
import time

from oci_hook.errors import refuse
from oci_hook.linux import label

LOCK_SECONDS = 5.0
QUEUE = 6  # where many containers start at once, the lock goes from one to the next
PART = 0.75  # of the time until the program's own deadline, whose message would not name the lock's holder


def own_dir(path: str) -> None:
    """Make the directory (0700), or check that only root can change what is in it. Raises NodeError GH-303."""
    try:
        st = os.lstat(path)
    except FileNotFoundError:
        try:
            os.makedirs(path, 0o700)
            label.put(path, label.READ)
        except FileExistsError:  # made by another process meanwhile
            pass
        st = os.lstat(path)
    if st.st_mode & 0o170000 != 0o040000:
        raise refuse("GH-303", f"{path} is not a directory; remove it")
    if st.st_uid not in (0, os.geteuid()) or st.st_mode & 0o022:
        raise refuse(
            "GH-303",
            f"{path} (owner {st.st_uid}, mode {st.st_mode & 0o7777:04o}) can be changed by other users;"
            " remove it, or chown it to root and chmod 0700",
        )


def lock_file(path: str, how: int, wait: bool = True, seconds: float = 0, advice: str = "end it and try again") -> int:
    """A descriptor that holds the flock until it is closed (LOCK_EX makes the file, LOCK_SH does not).

    Raises NodeError GH-303 after these seconds (0: QUEUE x LOCK_SECONDS), PART of the time until the process's alarm, or if one
    process has it for LOCK_SECONDS; OSError.
    wait=False: raises BlockingIOError at once if another process holds it. advice: what the message says of that process.
    """
    flags = os.O_RDONLY if how == fcntl.LOCK_SH else os.O_RDWR | os.O_CREAT
    while True:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if wait:
                _flock(fd, how, path, seconds, advice)
            else:
                fcntl.flock(fd, how | fcntl.LOCK_NB)
            try:
                if os.stat(path).st_ino == os.fstat(fd).st_ino:
                    return fd
            except FileNotFoundError:
                pass  # the directory was removed and made again, so the locked file protects nothing
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _flock(fd: int, how: int, path: str, seconds: float, advice: str) -> None:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
        return
    except BlockingIOError:
        pass
    # flock has no deadline, and a holder that is stopped must not stop every container of the node. So a thread waits
    # for the lock. After the deadline the caller closes the descriptor; if the thread gets the lock later, it is
    # released with the thread's last use of the file.
    done = _thread.allocate_lock()
    done.acquire()
    failed: list[OSError] = []

    def wait() -> None:
        try:
            fcntl.flock(fd, how)
        except OSError as e:
            failed.append(e)
        finally:
            done.release()

    try:
        _thread.start_new_thread(wait, ())
    except RuntimeError:  # no more threads allowed: wait without a deadline
        wait()
    most = seconds or LOCK_SECONDS * QUEUE
    if left := _alarm():
        most = min(most, left * PART)
    stuck = min(seconds or LOCK_SECONDS, most)
    waited, holder = 0.0, ""
    while not done.acquire(timeout=(step := min(stuck / 2, most - waited))):
        waited += step
        before, holder = holder, _holder(fd)
        if waited >= most or (waited >= stuck and holder == before):  # else the lock goes from one to the next
            raise refuse("GH-303", f"{path} is locked for {waited:.2g} s by {holder}; {advice}")
    if failed:
        raise failed[0]


def _alarm() -> float:
    """Seconds until this process's alarm (linux/limits.py); 0 if it has none."""
    return float(_signal.getitimer(_signal.ITIMER_REAL)[0])


def _holder(fd: int) -> str:
    """The lock's holder in words, from /proc/locks: `1: FLOCK ADVISORY WRITE PID MAJ:MIN:INODE 0 EOF`.

    Any process of the node may hold thousands of locks that are listed before this one, so the search has a deadline.
    """
    inode = str(os.fstat(fd).st_ino).encode()
    end = time.monotonic() + (_alarm() / 2 or 1.0)
    try:
        with open("/proc/locks", "rb") as lines:
            for line in lines:
                if inode in line and b"FLOCK" in line:
                    word = line.split()
                    if word[1] == b"FLOCK" and word[5].rpartition(b":")[2] == inode:
                        seen = word[4].isdigit() and int(word[4]) > 0  # 0: of another pid namespace
                        return f"process {word[4].decode()}" if seen else "a process that is not seen from here"
                if time.monotonic() > end:
                    break
    except (OSError, IndexError):
        pass
    return "another process"
