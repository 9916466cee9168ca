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
from ._native import Completion, Entry, Reserve, Stat

__all__ = [
    "PATH",
    "Client",
    "Completion",
    "Entry",
    "Error",
    "MemoryWriter",
    "Recording",
    "Reserve",
    "Stat",
    "Stream",
    "StreamFile",
    "Title",
    "TitleFile",
    "Writer",
    "WriterFile",
    "connect",
]

PATH = "/run/tactus/local.sock"
"""The socket of the sample configuration."""

PIECE = 128 << 10
"""Bytes of a piece of one read: the server fills one while another is copied."""


def connect(
    path: str | os.PathLike[str] | None = None,
    *,
    data: int | None = None,
    spin: float | None = None,
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

    def stream(
        self,
        title: Title,
        *,
        first: int = 0,
        rate: int | None = None,
        burst: int = 0,
        room: int = 0,
    ) -> Stream:
        """Has a title sent at a rate, from the byte `first` on. The title can be closed meanwhile.

        `rate`: bits per second; by default the title's own, which may vary with its content.
        `burst`: bytes that come at once at the beginning, if the rate is constant.
        `room`: bytes of the ring, how far the program may be behind; by default the burst and half
        a second.
        """
        return Stream(self, title, first=first, rate=rate, burst=burst, room=room)

    def create(self, path: str, *, length: int | None = None, replace: str = "titles") -> Writer:
        """Begins to write a title, which has no name before `Writer.publish`.

        `length`: its bytes, for which space and quota are claimed at once.
        `replace`: what may have the name: "titles" (one is replaced, if there is one), "nothing" or
        "existing".
        """
        return Writer(self, path, length=length, replace=replace)

    def create_in_memory(self, path: str, *, replace: str = "titles") -> MemoryWriter:
        """Begins to build a title in memory, without bytes at first and without a name.

        `replace`: as for `create`.
        """
        return MemoryWriter(self, path, replace=replace)

    def edit_in_memory(self, path: str) -> MemoryWriter:
        """Begins the next version of a title; the memory starts with its present bytes."""
        return MemoryWriter(self, path, edit=True)

    def resume_in_memory(self, path: str, upload: str) -> MemoryWriter:
        """Goes on with a title as far as it was synced before its writer ended.

        The writer is this program, the server or the machine.

        `upload`: what `MemoryWriter.upload` has said.
        """
        return MemoryWriter(self, path, upload=upload)

    def record(self, path: str, rate: int, *, replace: str = "titles", room: int = 0) -> Recording:
        """Begins to write a title at `rate`, in bits per second. The written bytes become a title,
        also after a failure.

        `room`: bytes of the ring, how far the server may be behind; by default half a second.
        """
        return Recording(self, path, rate, replace=replace, room=room)

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

    def readable(self) -> bool:
        _check(self)
        return True

    def seekable(self) -> bool:
        _check(self)
        return True

    def readinto(self, buffer) -> int:
        _check(self)
        count = self._title.read_into(buffer, self._at)
        self._at += count
        return count

    def readall(self) -> bytes:
        _check(self)
        data = self._title.read(self._at, max(self._title.length - self._at, 0))
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        _check(self)
        bases = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._title.length}
        if whence not in bases:
            raise ValueError(f"whence {whence} is not supported")
        at = bases[whence] + offset
        if at < 0:
            raise ValueError(f"seek to {at}, which is before the beginning")
        self._at = at
        return at

    def tell(self) -> int:
        _check(self)
        return self._at


class Stream(_native.Stream):
    """A title that comes at a rate. One thread at a time uses it."""

    def file(self, buffer_size: int = PIECE) -> io.BufferedReader | StreamFile:
        """A file object that reads the stream; unbuffered with a `buffer_size` of 0."""
        raw = StreamFile(self)
        return io.BufferedReader(raw, buffer_size) if buffer_size else raw

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StreamFile(io.RawIOBase):
    """A stream as a raw file: a read waits for bytes. To close it leaves the stream open."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def readable(self) -> bool:
        _check(self)
        return True

    def readinto(self, buffer) -> int:
        _check(self)
        return self._stream.read_into(buffer)


class Writer(_native.Writer):
    """A title that is written.

    As a context it is published at the end, and dropped after an exception.
    """

    def file(self, buffer_size: int = PIECE) -> io.BufferedWriter | WriterFile:
        """A file object that writes the title; unbuffered with a `buffer_size` of 0."""
        raw = WriterFile(self)
        return io.BufferedWriter(raw, buffer_size) if buffer_size else raw

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.publish()
        else:
            self.close()


class MemoryWriter(_native.MemoryWriter):
    """A title that is built in place, in any order, in memory that the server shares.

    One thread at a time uses it.

    As a context it is closed at the end: what was neither synced nor published is dropped.
    """

    _view: memoryview | None = None

    def view(self) -> memoryview:
        """All bytes that are there, to be changed.

        Those that are final (`written_back`) are only to be read.

        After `grow` a new view has the new bytes. Views of before stay valid, and show the same
        memory; they have nothing but zeros when the title is published or dropped.
        """
        length = self.length
        if self._view is None or len(self._view) != length:
            if length:
                mapped = mmap.mmap(self.fileno(), self.first + length)
                self._view = memoryview(mapped)[self.first :]
            else:
                self._view = memoryview(bytearray())
        return self._view

    def __enter__(self) -> MemoryWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Recording(_native.Recording):
    """A title that is written at a rate.

    As a context it is finished at the end. One thread at a time uses it.
    """

    def file(self, buffer_size: int = PIECE) -> io.BufferedWriter | WriterFile:
        """A file object that writes the title; unbuffered with a `buffer_size` of 0."""
        raw = WriterFile(self)
        return io.BufferedWriter(raw, buffer_size) if buffer_size else raw

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish()
        else:
            self.close()


class WriterFile(io.RawIOBase):
    """A writer or a recording as a raw file. To close it leaves them open."""

    def __init__(self, writer: Writer | Recording) -> None:
        self._writer = writer

    def writable(self) -> bool:
        _check(self)
        return True

    def write(self, data) -> int:
        _check(self)
        return self._writer.write(data)

    def tell(self) -> int:
        _check(self)
        return self._writer.length


def _check(file: io.RawIOBase) -> None:
    if file.closed:
        raise ValueError("I/O operation on closed file")


class _Mapped(mmap.mmap):
    """A map that keeps its title open: the server takes the memory back when it is closed."""

    memory: _native.Memory
