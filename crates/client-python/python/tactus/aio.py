"""Tactus for asyncio.

    client = await tactus.aio.connect()
    title = await client.open("/films/one.ts")
    head = await title.read(0, 188)

One descriptor in the event loop serves all reads, streams and recordings of a client. Names are
looked up by a thread of the loop's executor, because the server may have to ask a disk; there a
writer waits, too.
"""

from __future__ import annotations

import asyncio
import errno
import os
import weakref
from collections import deque

import tactus
from tactus import PIECE, Completion, Entry, Error, Reserve, Stat

__all__ = ["Client", "MemoryWriter", "Recording", "Stream", "Title", "Writer", "connect"]

PIECES = 4
"""Pieces of one read that are under way at once."""


async def connect(
    path: str | os.PathLike[str] | None = None, *, data: int | None = None
) -> Client:
    """Connects to the server at a Unix socket, by default `tactus.PATH`.

    `data` is as in `tactus.connect`.
    """
    loop = asyncio.get_running_loop()
    client = await loop.run_in_executor(None, lambda: tactus.connect(path, data=data))
    return Client(client, loop)


class Client:
    """A connection that belongs to one event loop."""

    def __init__(self, client: tactus.Client, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop
        self._reads: dict[int, asyncio.Future[Completion]] = {}
        self._room: list[asyncio.Future[None]] = []
        self._rings: weakref.WeakSet[Stream | Recording] = weakref.WeakSet()
        self._news: list[asyncio.Future[None]] = []
        self._is_armed = False

    async def open(self, path: str) -> Title:
        """Opens a title for reading."""
        return Title(self, await self._loop.run_in_executor(None, self._client.open, path))

    async def stream(
        self,
        title: Title,
        *,
        first: int = 0,
        rate: int | None = None,
        burst: int = 0,
        room: int = 0,
    ) -> Stream:
        """Has a title sent at a rate; as `tactus.Client.stream`."""
        begin = lambda: self._client.stream(
            title._title, first=first, rate=rate, burst=burst, room=room
        )
        return Stream(self, await self._loop.run_in_executor(None, begin))

    async def create(
        self, path: str, *, length: int | None = None, replace: str = "titles"
    ) -> Writer:
        """Begins to write a title; as `tactus.Client.create`."""
        begin = lambda: self._client.create(path, length=length, replace=replace)
        return Writer(self, await self._loop.run_in_executor(None, begin))

    async def create_in_memory(self, path: str, *, replace: str = "titles") -> MemoryWriter:
        """Begins to build a title in memory; as `tactus.Client.create_in_memory`."""
        begin = lambda: self._client.create_in_memory(path, replace=replace)
        return MemoryWriter(self, await self._loop.run_in_executor(None, begin))

    async def edit_in_memory(self, path: str) -> MemoryWriter:
        """Begins to build the next version of a title; as `tactus.Client.edit_in_memory`."""
        begun = self._loop.run_in_executor(None, self._client.edit_in_memory, path)
        return MemoryWriter(self, await begun)

    async def resume_in_memory(self, path: str, upload: str) -> MemoryWriter:
        """Goes on with a title that was synced; as `tactus.Client.resume_in_memory`."""
        begun = self._loop.run_in_executor(None, self._client.resume_in_memory, path, upload)
        return MemoryWriter(self, await begun)

    async def record(
        self, path: str, rate: int, *, replace: str = "titles", room: int = 0
    ) -> Recording:
        """Begins to write a title at a rate in bits per second; as `tactus.Client.record`."""
        begin = lambda: self._client.record(path, rate, replace=replace, room=room)
        return Recording(self, await self._loop.run_in_executor(None, begin))

    async def stat(self, path: str) -> Stat:
        """The facts about a title or a directory."""
        return await self._loop.run_in_executor(None, self._client.stat, path)

    async def list(self, path: str = "/") -> list[Entry]:
        """The names in a directory, sorted."""
        return await self._loop.run_in_executor(None, self._client.list, path)

    def close(self) -> None:
        """Ends the connection; reads under way are cancelled."""
        self._disarm()
        for waiting in [*self._reads.values(), *self._room, *self._news]:
            waiting.cancel()
        self._reads.clear()
        self._news.clear()
        self._client.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def _read(self, title: tactus.Title, offset: int, length: int, at: int) -> Completion:
        while True:
            try:
                token = self._client.submit(title, offset, length, at)
                break
            except Error as error:
                # Room comes with the completions of the reads under way.
                if error.errno not in (errno.EAGAIN, errno.ENOBUFS) or not self._reads:
                    raise
            room = self._loop.create_future()
            self._room.append(room)
            await room
        # A read that is cancelled keeps its place until its completion comes.
        read = self._reads[token] = self._loop.create_future()
        self._arm()
        return await read

    async def _ring_news(self) -> None:
        """Waits until a ring has something new, or may have."""
        news = self._loop.create_future()
        self._news.append(news)
        self._arm()
        await news

    def _look(self) -> None:
        """Looks into all rings, so that only what is new from here on wakes the loop.

        Those that wait look again.
        """
        for ring in self._rings:
            ring._look()
        for news in self._news:
            if not news.done():
                news.set_result(None)
        self._news.clear()

    def _arm(self) -> None:
        """Takes completions until there are none, then waits for the descriptor."""
        if self._is_armed:
            return
        while self._reads or self._news:
            self._take()
            try:
                if not self._reads and not self._news:
                    return
                if self._client.arm():
                    self._loop.add_reader(self._client.fileno(), self._wake)
                    self._is_armed = True
                    return
                self._look()
            except Error as error:
                # The server has gone, and all completions were taken.
                for read in self._reads.values():
                    if not read.done():
                        read.set_exception(error)
                self._reads.clear()
                # Each finds out for itself.
                self._look()

    def _disarm(self) -> None:
        if self._is_armed:
            self._is_armed = False
            self._loop.remove_reader(self._client.fileno())
            self._client.disarm()

    def _wake(self) -> None:
        self._disarm()
        self._look()
        self._arm()

    def _take(self) -> None:
        while completion := self._client.poll():
            read = self._reads.pop(completion.token)
            if not read.done():
                read.set_result(completion)
            for room in self._room:
                if not room.done():
                    room.set_result(None)
            self._room.clear()


class Title:
    """An open title of a client of asyncio."""

    def __init__(self, client: Client, title: tactus.Title) -> None:
        self._client = client
        self._title = title

    @property
    def length(self) -> int:
        """Its length in bytes when it was opened."""
        return self._title.length

    @property
    def rate(self) -> int | None:
        """Its rate in bits per second, if the server knows it."""
        return self._title.rate

    @property
    def stat(self) -> Stat:
        """The facts, as they were when it was opened."""
        return self._title.stat

    async def read(self, offset: int, length: int, at: int = 0) -> bytes:
        """Reads up to `length` bytes from `offset` on; fewer only at the end of the title.

        With `at` it is answered at that moment, in nanoseconds of `time.monotonic_ns`, not before.
        """
        length = max(min(length, self._title.length - offset), 0)
        pieces: list[bytes] = []
        under_way: deque[asyncio.Task[Completion]] = deque()
        try:
            for begin in range(0, length, PIECE):
                if len(under_way) == PIECES:
                    pieces.append((await under_way.popleft()).data)
                piece = self._client._read(
                    self._title, offset + begin, min(PIECE, length - begin), at
                )
                under_way.append(asyncio.ensure_future(piece))
            while under_way:
                pieces.append((await under_way.popleft()).data)
        finally:
            for piece in under_way:
                piece.cancel()
        return b"".join(pieces)

    async def reserve(self, interval_ns: int, length: int, *, tolerance_ns: int = 0) -> Reserve:
        """Reserves room for reads at moments; as `tactus.Title.reserve`.

        A read of more than `tactus.PIECE` bytes is several reads at the same moment.
        """
        reserve = lambda: self._title.reserve(interval_ns, length, tolerance_ns=tolerance_ns)
        return await self._client._loop.run_in_executor(None, reserve)

    def close(self) -> None:
        """Closes it, when its reads under way have ended."""
        self._title.close()


class Stream:
    """A title that comes at a rate, for a client of asyncio. One task at a time reads it."""

    def __init__(self, client: Client, stream: tactus.Stream) -> None:
        self._client = client
        self._stream = stream
        client._rings.add(self)

    @property
    def rate(self) -> int:
        """The rate in bits per second; the highest one if it varies with the content."""
        return self._stream.rate

    @property
    def position(self) -> int:
        """The byte of the title that comes next to the program."""
        return self._stream.position

    @property
    def at_end(self) -> bool:
        """Whether the program has read the title to its end."""
        return self._stream.at_end

    async def read(self, length: int = PIECE) -> bytes:
        """Reads up to `length` bytes, as many as have come.

        Waits for at least one; none come only at the end.
        """
        while not (data := self._stream.take(length)) and length and not self._stream.at_end:
            await self._client._ring_news()
        return data

    async def seek(self, to: int) -> None:
        """Goes on at another byte of the title, at once."""
        await self._client._loop.run_in_executor(None, self._stream.seek, to)

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> bytes:
        if data := await self.read():
            return data
        raise StopAsyncIteration

    def close(self) -> None:
        """Ends it."""
        self._stream.close()

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def _look(self) -> None:
        try:
            self._stream.ready()
        except (Error, ValueError):
            pass  # Who reads it is told.


class Recording:
    """A title that is written at a rate, for a client of asyncio. One task at a time writes it."""

    def __init__(self, client: Client, recording: tactus.Recording) -> None:
        self._client = client
        self._recording = recording
        client._rings.add(self)

    @property
    def rate(self) -> int:
        """The rate in bits per second."""
        return self._recording.rate

    @property
    def length(self) -> int:
        """The number of bytes handed over so far."""
        return self._recording.length

    @property
    def durable(self) -> int:
        """Bytes, from the first one on, that a power failure does not take any more."""
        return self._recording.durable

    async def write(self, data: bytes | bytearray | memoryview) -> int:
        """Hands all of `data` over, and returns its number of bytes. Waits for room."""
        rest = memoryview(data).cast("B")
        length = len(rest)
        while rest:
            done = self._recording.put(rest)
            rest = rest[done:]
            if not done:
                await self._client._ring_news()
        return length

    async def finish(self) -> int:
        """Makes a title of all bytes, and waits until it is on stable storage.

        Returns its length.
        """
        return await self._client._loop.run_in_executor(None, self._recording.finish)

    def close(self) -> None:
        """Closes the recording; the server makes a title of the written bytes."""
        self._recording.close()

    async def __aenter__(self) -> Recording:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.finish()
        else:
            self.close()

    def _look(self) -> None:
        try:
            self._recording.ready()
        except (Error, ValueError):
            pass  # Who writes it is told.


class Writer:
    """A title that is written, for a client of asyncio."""

    def __init__(self, client: Client, writer: tactus.Writer) -> None:
        self._client = client
        self._writer = writer

    @property
    def length(self) -> int:
        """The number of bytes written so far."""
        return self._writer.length

    async def write(self, data: bytes | bytearray | memoryview) -> int:
        """Appends all of `data`, and waits until the server has it. Returns its number of bytes."""
        return await self._client._loop.run_in_executor(None, self._writer.write, data)

    async def sync(self) -> None:
        """Waits until all bytes so far are on stable storage."""
        await self._client._loop.run_in_executor(None, self._writer.sync)

    async def publish(self, modified_ns: int | None = None) -> None:
        """Makes a title of all bytes, and waits until it is on stable storage."""
        await self._client._loop.run_in_executor(None, self._writer.publish, modified_ns)

    def close(self) -> None:
        """Drops all bytes, unless they are published."""
        self._writer.close()

    async def __aenter__(self) -> Writer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.publish()
        else:
            self.close()


class MemoryWriter:
    """A title that is built in memory, for a client of asyncio. One task at a time uses it."""

    def __init__(self, client: Client, writer: tactus.MemoryWriter) -> None:
        self._client = client
        self._writer = writer

    @property
    def length(self) -> int:
        """The number of bytes that are there."""
        return self._writer.length

    @property
    def written_back(self) -> int:
        """The number of bytes that are final."""
        return self._writer.written_back

    @property
    def upload(self) -> str:
        """What it is continued by after a crash, if it was synced."""
        return self._writer.upload

    def view(self) -> memoryview:
        """All bytes that are there; as `tactus.MemoryWriter.view`."""
        return self._writer.view()

    async def grow(self, length: int) -> None:
        """Has memory for at least `length` bytes from now on, new ones zero."""
        await self._client._loop.run_in_executor(None, self._writer.grow, length)

    async def write_back(self, end: int) -> None:
        """Makes the first `end` bytes final, and waits until the server has taken them."""
        await self._client._loop.run_in_executor(None, self._writer.write_back, end)

    async def sync(self, end: int) -> None:
        """The same, and waits until they are on stable storage."""
        await self._client._loop.run_in_executor(None, self._writer.sync, end)

    async def publish(self, length: int, modified_ns: int | None = None) -> None:
        """Makes a title of the first `length` bytes, and waits until it is on stable storage."""
        await self._client._loop.run_in_executor(None, self._writer.publish, length, modified_ns)

    async def abort(self) -> None:
        """Drops all bytes, even if they were synced."""
        await self._client._loop.run_in_executor(None, self._writer.abort)

    def close(self) -> None:
        """Drops what was not synced, unless it is published."""
        self._writer.close()

    async def __aenter__(self) -> MemoryWriter:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
