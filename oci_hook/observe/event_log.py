"""Reads the node's events (ledger/events.py) as they are written, also when the file is replaced; skips damaged lines."""

import os
from typing import Any

from oci_hook.core.layout import EVENTS
from oci_hook.oci import fastjson

AT_ONCE = 4 << 20  # bytes per read; more than both files may have


class Follower:
    """`read` returns what was written since the previous call. old: begin with all events that are there."""

    def __init__(self, state_dir: str, old: bool) -> None:
        self._path = f"{state_dir}/{EVENTS}"
        self._old = old
        self._inode = 0
        self._offset = 0
        self._older = (0, 0)  # the previous file's inode, and how far it was read: a last writer may come late
        self._begun = False

    def read(self) -> list[dict[str, Any]]:
        """The new events, oldest first."""
        now = self._stat(self._path)
        found: list[dict[str, Any]] = []
        if not self._begun:
            self._begun = True
            if self._old:
                found += self._from(self._path + ".1", 0)[0]
            elif now:
                self._inode, self._offset = now
                return []
        elif self._inode and (now is None or now[0] != self._inode):
            self._older = (self._inode, self._offset)
            self._inode = self._offset = 0
        if self._older[0]:
            older = self._stat(self._path + ".1")
            if older and older[0] == self._older[0]:
                more, read = self._from(self._path + ".1", self._older[1])
                found += more
                self._older = (older[0], read)
            else:
                self._older = (0, 0)
        if now:
            if now[0] == self._inode and now[1] < self._offset:  # the file was cut
                self._offset = 0
            self._inode = now[0]
            more, self._offset = self._from(self._path, self._offset)
            found += more
        return found

    def _stat(self, path: str) -> tuple[int, int] | None:
        try:
            st = os.lstat(path)
        except OSError:
            return None
        return st.st_ino, st.st_size

    def _from(self, path: str, offset: int) -> tuple[list[dict[str, Any]], int]:
        """(the events in the whole lines from this offset on, the offset of their end)"""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return [], offset
        try:
            data = os.pread(fd, AT_ONCE, offset)
        finally:
            os.close(fd)
        end = data.rfind(b"\n") + 1
        found = []
        for line in data[:end].splitlines():
            try:
                event = fastjson.loads(line)
                if isinstance(event, dict) and isinstance(event.get("event"), str):
                    float(event["at"])
                    found.append(event)
            except (ValueError, KeyError, TypeError):
                pass
        return found, offset + end
