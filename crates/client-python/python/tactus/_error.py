"""The exception of this package."""


class Error(OSError):
    """What the server or the library says: `errno` as in the module `errno`, and `strerror`.

    EAGAIN        256 reads are under way
    ENOBUFS       the shared memory has no room for this read; take completions, or connect with
                  more data
    ENOMEM        the memory for titles of programs is in use
    EBUSY, ENOSPC the server has no room for this stream or recording: the text names what is short
    EDQUOT, ENOSPC, EFBIG    the quota, the disk or the title that is written is full
    ETIMEDOUT     a stream: this program was too slow
    ECONNRESET    the server has gone; connect again
    EACCES, ENOENT, EISDIR, ENOTDIR, EMFILE, EIO    as for files
    """
