"""Tactus for asyncio.

    client = await tactus.aio.connect()
    title = await client.open("/films/one.ts")
    head = await title.read(0, 188)

One descriptor in the event loop serves all reads of a client. Names are looked up by a thread of the loop's executor,
because the server may have to ask a disk.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque

import tactus
from tactus import PIECE, Completion, Entry, Error, Stat

__all__ = ["Client", "Title", "connect"]

PIECES = 4
"""Pieces of one read that are under way at once."""


async def connect(
    path: str | os.PathLike[str] | None = None, *, data: int | None = None
) -> Client:
    """Connects to the server at a Unix socket, by default `tactus.PATH`; `data` as in `tactus.connect`."""
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
        self._is_armed = False

    async def open(self, path: str) -> Title:
        """Opens a title for reading."""
        return Title(self, await self._loop.run_in_executor(None, self._client.open, path))

    async def stat(self, path: str) -> Stat:
        """The facts about a title or a directory."""
        return await self._loop.run_in_executor(None, self._client.stat, path)

    async def list(self, path: str = "/") -> list[Entry]:
        """The names in a directory, sorted."""
        return await self._loop.run_in_executor(None, self._client.list, path)

    def close(self) -> None:
        """Ends the connection; reads under way are cancelled."""
        self._disarm()
        for waiting in [*self._reads.values(), *self._room]:
            waiting.cancel()
        self._reads.clear()
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

    def _arm(self) -> None:
        """Takes completions until there are none, then waits for the descriptor."""
        if self._is_armed:
            return
        while self._reads:
            self._take()
            try:
                if not self._reads:
                    return
                if self._client.arm():
                    self._loop.add_reader(self._client.fileno(), self._wake)
                    self._is_armed = True
                    return
            except Error as error:
                # The server has gone, and all completions were taken.
                for read in self._reads.values():
                    if not read.done():
                        read.set_exception(error)
                self._reads.clear()

    def _disarm(self) -> None:
        if self._is_armed:
            self._is_armed = False
            self._loop.remove_reader(self._client.fileno())
            self._client.disarm()

    def _wake(self) -> None:
        self._disarm()
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

    def close(self) -> None:
        """Closes it, when its reads under way have ended."""
        self._title.close()
