"""Tactus for programs on the same machine: titles through memory that the server shares.

    import tactus

    with tactus.connect() as client, client.open("/films/one.ts") as title:
        head = title.read(0, 188)

Waiting calls release the interpreter's lock. `tactus.aio` has the same for asyncio.
"""

from __future__ import annotations

import io
import mmap
import os

from ._error import Error
from . import _native
from ._native import Completion, Entry, Stat

__all__ = ["PATH", "Client", "Completion", "Entry", "Error", "Stat", "Title", "TitleFile", "connect"]

PATH = "/run/tactus/local.sock"
"""The socket of the sample configuration."""

PIECE = 128 << 10
"""Bytes of a piece of one read: the server fills one while another is copied."""


def connect(
    path: str | os.PathLike[str] | None = None, *, data: int | None = None, spin: float | None = None
) -> Client:
    """Connects to the server at a Unix socket, by default `PATH`.

    `data`: bytes to share with the server, the room for all submitted reads; 4 MiB by default.
    `spin`: seconds that a waiting call looks for its answer before it sleeps; 20e-6 by default.
    """
    return Client(PATH if path is None else path, data=data, spin=spin)


class Client(_native.Client):
    """A connection. It can be used by several threads, and ends with its last title."""

    def open(self, path: str) -> Title:
        """Opens a title for reading, by its path as in HTTP: "/films/one.ts"."""
        return Title(self.open_title(path))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Title(_native.Title):
    """An open title. It can be used by several threads."""

    def map(self) -> memoryview:
        """All bytes of the title in memory, read-only: no request and no copy.

        The title stays open as long as the view or a part of it lives.
        """
        memory = self.memory()
        mapped = _Mapped(
            memory.fileno(),
            memory.first + memory.length,
            flags=mmap.MAP_SHARED | mmap.MAP_POPULATE,
            prot=mmap.PROT_READ,
        )
        mapped.memory = memory
        return memoryview(mapped)[memory.first :]

    def file(self, buffer_size: int = PIECE) -> io.BufferedReader | TitleFile:
        """A file object that reads the title; unbuffered with a `buffer_size` of 0."""
        raw = TitleFile(self)
        return io.BufferedReader(raw, buffer_size) if buffer_size else raw

    def __enter__(self) -> Title:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TitleFile(io.RawIOBase):
    """A title as a raw file. To close it leaves the title open."""

    def __init__(self, title: Title) -> None:
        self._title = title
        self._at = 0

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def readable(self) -> bool:
        self._check()
        return True

    def seekable(self) -> bool:
        self._check()
        return True

    def readinto(self, buffer) -> int:
        self._check()
        count = self._title.read_into(buffer, self._at)
        self._at += count
        return count

    def readall(self) -> bytes:
        self._check()
        data = self._title.read(self._at, max(self._title.length - self._at, 0))
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._check()
        bases = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._title.length}
        if whence not in bases:
            raise ValueError(f"whence {whence} is not supported")
        at = bases[whence] + offset
        if at < 0:
            raise ValueError(f"seek to {at}, which is before the beginning")
        self._at = at
        return at

    def tell(self) -> int:
        self._check()
        return self._at


class _Mapped(mmap.mmap):
    """A map that keeps its title open: the server takes the memory back when it is closed."""

    memory: _native.Memory
