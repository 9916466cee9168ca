"""The native half of the package."""

import os
from collections.abc import Buffer
from typing import final

class Client:
    """A connection to the server."""

    def __new__(
        cls, path: str | os.PathLike[str], *, data: int | None = None, spin: float | None = None
    ) -> Client: ...
    def open_title(self, path: str) -> OpenTitle:
        """Opens a title for reading: for `Title`."""
    def stat(self, path: str) -> Stat:
        """The facts about a title or a directory."""
    def list(self, path: str = "/") -> list[Entry]:
        """The names in a directory, sorted."""
    def remove(self, path: str) -> None:
        """Removes a title."""
    def submit(self, title: Title, offset: int, length: int, at: int = 0) -> int:
        """Submits a read, and returns its number. The completion comes from `poll` or `wait`.

        With `at` it is answered at that moment, in nanoseconds of `time.monotonic_ns`, not before.
        """
    @property
    def room(self) -> int:
        """How many reads can be submitted now."""
    def poll(self) -> Completion | None:
        """The next completion, if there is one."""
    def wait(self, timeout: float | None = None) -> Completion | None:
        """Waits for the next completion, for so many seconds at most.

        `None` if they are over, or if no read is under way.
        """
    def fileno(self) -> int:
        """The descriptor that becomes readable after `arm` when a completion comes.

        It must not be read.
        """
    def arm(self) -> bool:
        """Prepares to wait for the descriptor. False if there is a completion already."""
    def disarm(self) -> None:
        """Ends the wait for the descriptor."""
    def close(self) -> None:
        """Ends the connection, when its titles are closed as well."""

class Title:
    """An open title. It is closed by `close`, or with its last reference."""

    def __new__(cls, title: OpenTitle) -> Title: ...
    @property
    def length(self) -> int:
        """Its length in bytes when it was opened."""
    @property
    def rate(self) -> int | None:
        """Its rate in bits per second, if the server knows it."""
    @property
    def stat(self) -> Stat:
        """The facts, as they were when it was opened."""
    def read(self, offset: int, length: int) -> bytes:
        """Reads up to `length` bytes from `offset` on; fewer only at the end of the title."""
    def read_into(self, buffer: Buffer, offset: int = 0) -> int:
        """Reads bytes from `offset` on into `buffer`, and returns their number.

        As many as the buffer has, fewer only at the end of the title.
        """
    def memory(self) -> Memory:
        """Has the title read into memory, and returns its memory file."""
    def reserve(self, interval_ns: int, length: int, *, tolerance_ns: int = 0) -> Reserve:
        """Reserves room for reads at moments: disk time, memory and CPU, until the title is closed.

        From then on a read of this title `at` a moment is answered at it, or refused by its
        completion: ETIME if the moment is nearer than `Reserve.ahead`, EBUSY if the moments are
        closer to each other than reserved, EMSGSIZE if the read is longer. Raises EBUSY or ENOSPC
        if the server has no room.
        `interval_ns`: between two moments in the mean, in nanoseconds.
        `length`: bytes of a read at most, no more than a block has.
        `tolerance_ns`: how much earlier than the interval allows a moment may be.
        """
    def close(self) -> None:
        """Closes it, when its maps are gone as well."""

class Stream:
    """A title that comes at a rate. It ends with `close`, or with its last reference."""

    def __new__(
        cls,
        client: Client,
        title: Title,
        *,
        first: int = 0,
        rate: int | None = None,
        burst: int = 0,
        room: int = 0,
    ) -> Stream: ...
    @property
    def rate(self) -> int:
        """The rate in bits per second; the highest one if it varies with the content."""
    @property
    def position(self) -> int:
        """The byte of the title that comes next to the program."""
    @property
    def at_end(self) -> bool:
        """Whether the program has read the title to its end."""
    def ready(self) -> int:
        """The number of bytes that can be taken now. Never waits."""
    def take(self, length: int) -> bytes:
        """Takes up to `length` bytes that have come: none if none have. Never waits."""
    def read(self, length: int) -> bytes:
        """Reads up to `length` bytes, as many as have come.

        Waits for at least one; none come only at the end of the title.
        """
    def read_into(self, buffer: Buffer) -> int:
        """Reads bytes into `buffer`, as many as have come and have room, and returns their number.

        Waits for at least one; none come only at the end of the title.
        """
    def seek(self, to: int) -> None:
        """Goes on at another byte of the title, at once."""
    def close(self) -> None:
        """Ends it."""

class Writer:
    """A title that is written.

    It has no name before `publish`; closed before, nothing of it is left.
    """

    def __new__(
        cls, client: Client, path: str, *, length: int | None = None, replace: str = "titles"
    ) -> Writer: ...
    @property
    def length(self) -> int:
        """The number of bytes written so far."""
    def write(self, data: Buffer) -> int:
        """Appends all of `data`, and waits until the server has it. Returns its number of bytes."""
    def sync(self) -> None:
        """Waits until all bytes so far are on stable storage.

        They are no title before `publish`.
        """
    def publish(self, modified_ns: int | None = None) -> None:
        """Makes a title of all bytes, and waits until it is on stable storage.

        `modified_ns` is its modification time in nanoseconds since 1970, by default now.
        """
    def abort(self) -> None:
        """Drops all bytes. Their space is free when this returns."""
    def close(self) -> None:
        """Drops all bytes, unless they are published, and does not wait for it."""

class MemoryWriter:
    """A title that is built in memory.

    It has no name before `publish`; closed before, nothing of it is left but what was synced.
    """

    def __new__(
        cls,
        client: Client,
        path: str,
        *,
        replace: str = "titles",
        edit: bool = False,
        upload: str | None = None,
    ) -> MemoryWriter: ...
    @property
    def first(self) -> int:
        """Where the title begins in the memory file, in bytes."""
    @property
    def length(self) -> int:
        """The number of bytes that are there."""
    @property
    def limit(self) -> int:
        """The most bytes that its memory can ever have."""
    @property
    def upload(self) -> str:
        """What it is continued by after a crash, if it was synced: `Client.resume_in_memory`."""
    @property
    def written_back(self) -> int:
        """The number of bytes, from the first one on, that are final: they must not be changed."""
    def fileno(self) -> int:
        """The descriptor of its memory file."""
    def grow(self, length: int) -> None:
        """Has memory for at least `length` bytes from now on, new ones zero.

        Claims quota and space for as many.

        Raises ENOMEM, EDQUOT, ENOSPC or EFBIG; the title has the room that it had before then.
        """
    def write_back(self, end: int) -> None:
        """Makes the first `end` bytes final, and waits until the server has taken them."""
    def sync(self, end: int) -> None:
        """The same, and waits until they are on stable storage: they outlive any crash."""
    def publish(self, length: int, modified_ns: int | None = None) -> None:
        """Makes a title of the first `length` bytes, and waits until it is on stable storage.

        `modified_ns` is its modification time in nanoseconds since 1970, by default now.
        """
    def abort(self) -> None:
        """Drops all bytes, even if they were synced. Their space is free when this returns."""
    def close(self) -> None:
        """Drops what was not synced, unless it is published, and does not wait for it."""

class Recording:
    """A title written at a rate. The written bytes become a title, also after a failure."""

    def __new__(
        cls, client: Client, path: str, rate: int, *, replace: str = "titles", room: int = 0
    ) -> Recording: ...
    @property
    def rate(self) -> int:
        """The rate in bits per second."""
    @property
    def length(self) -> int:
        """The number of bytes handed over so far."""
    @property
    def durable(self) -> int:
        """Bytes, from the first one on, that a power failure does not take any more."""
    @property
    def overruns(self) -> int:
        """How often this program was faster than its rate."""
    @property
    def underruns(self) -> int:
        """How often this program was slower than its rate."""
    def ready(self) -> int:
        """The number of bytes that can be put now. Never waits."""
    def put(self, data: Buffer) -> int:
        """Hands the first bytes of `data` over, as many as there is room for. Returns their number.

        Never waits.
        """
    def write(self, data: Buffer) -> int:
        """Hands all of `data` over, and returns its number of bytes.

        Waits for room: a program that is faster than its rate is held to it.
        """
    def finish(self) -> int:
        """Makes a title of all bytes, and waits until it is on stable storage.

        Returns its length.
        """
    def close(self) -> None:
        """Closes the recording; the server makes a title of the written bytes."""

@final
class OpenTitle:
    """A title that was opened, to make a `Title` of."""

@final
class Stat:
    """Facts about a title or a directory."""

    @property
    def length(self) -> int:
        """Length in bytes; zero for a directory."""
    @property
    def modified_ns(self) -> int:
        """When it was changed, in nanoseconds since 1970."""
    @property
    def rate(self) -> int | None:
        """Its rate in bits per second, if the server knows it."""
    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""

@final
class Entry:
    """One name of a directory."""

    @property
    def name(self) -> str:
        """The name."""
    @property
    def stat(self) -> Stat:
        """The facts."""

@final
class Completion:
    """A read that has ended."""

    @property
    def token(self) -> int:
        """The number that `submit` returned."""
    @property
    def at(self) -> int:
        """When it took effect, in nanoseconds of the monotonic clock."""
    @property
    def data(self) -> bytes:
        """The bytes: as many as requested, fewer only at the end of the title.

        Raises `Error` if they were not read.
        """

@final
class Reserve:
    """Reserved room for the reads of one title at moments, until the title is closed."""

    @property
    def block(self) -> int:
        """Length of a block in bytes. A read within one block needs less lead than one in two."""
    def ahead(self, offset: int, length: int) -> int:
        """Least lead of a read before its moment, in nanoseconds; add a few milliseconds."""

@final
class Memory:
    """The memory file of a title. While it lives, the title is open."""

    @property
    def first(self) -> int:
        """Where the title begins in the file, in bytes."""
    @property
    def length(self) -> int:
        """The length of the title in bytes."""
    def fileno(self) -> int:
        """The descriptor of the file."""
