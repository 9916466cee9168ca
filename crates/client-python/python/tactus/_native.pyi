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
        """The descriptor that becomes readable after `arm` when a completion comes. It must not be read."""
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
    def close(self) -> None:
        """Closes it, when its maps are gone as well."""

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
