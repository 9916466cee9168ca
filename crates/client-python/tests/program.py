"""The parts of the package against a server: program.py PART SOCKET FILE.

FILE has the bytes of each title.

A part fails by an exception, and prints its name when it ends.
"""

import ast
import asyncio
import base64
import errno
import gc
import hashlib
import importlib.metadata
import io
import select
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import tactus
import tactus.aio
from tactus import _native

PART, SOCKET, FILE = sys.argv[1:]
BYTES = Path(FILE).read_bytes()
END = len(BYTES)


def connect(**options):
    return tactus.connect(SOCKET, **options)


def raises(kind, call, *arguments):
    try:
        call(*arguments)
    except kind as error:
        return error
    raise AssertionError(f"{call} does not raise {kind}")


def package():
    """The list of the wheel names each file with its hash."""
    distribution = importlib.metadata.distribution("tactus")
    assert distribution.version == "0.1.0", distribution.version
    names = set()
    for file in distribution.files:
        names.add(str(file))
        if file.hash:
            digest = hashlib.sha256(file.locate().read_bytes()).digest()
            assert file.hash.value == base64.urlsafe_b64encode(digest).rstrip(b"=").decode(), file
    needed = ["_native.abi3.so", "_native.pyi", "py.typed", "aio.py", "__init__.py"]
    assert {f"tactus/{name}" for name in needed} <= names, names
    connect().close()


def stub():
    """The stub has the names of the native half, and no others."""
    tree = ast.parse(Path(tactus.__file__).with_name("_native.pyi").read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    public = {name for name in dir(_native) if not name.startswith("_")}
    assert set(classes) == public, set(classes) ^ public
    for name, node in classes.items():
        documented = {member.name for member in node.body if isinstance(member, ast.FunctionDef)}
        present = set(vars(getattr(_native, name)))
        shown = {member for member in documented | present if not member.startswith("_")}
        assert shown <= documented & present, (name, documented ^ present)
    connect().close()


def reads():
    with connect() as client, client.open("/one") as title:
        assert (title.length, title.rate) == (END, 8_000_000)
        assert title.stat == client.stat("/one") and title.stat.modified_ns == 5
        assert repr(title.stat).startswith(f"Stat(length={END}, modified_ns=5, rate=8000000, ")
        assert [entry.name for entry in client.list()] == ["a", "b", "c", "d", "e"]
        for offset, length in [(0, 188), (7, 0), (1, END), (END - 5, 100), (END, 1), (END + 9, 1)]:
            assert title.read(offset, length) == BYTES[offset : offset + length], (offset, length)
        buffer = bytearray(END + 10)
        assert title.read_into(buffer) == END and buffer[:END] == BYTES
        words = memoryview(bytearray(4000)).cast("I")
        assert title.read_into(words, 3) == 4000 and words.tobytes() == BYTES[3:4003]
        raises(BufferError, title.read_into, bytes(5))
        raises(TypeError, title.read_into, memoryview(bytearray(8))[::2])
        raises(TypeError, title.read_into, "text")
    raises(ValueError, title.read, 0, 1)
    raises(ValueError, client.stat, "/one")
    raises(ValueError, client.fileno)


def files():
    with connect() as client, client.open("/one") as title:
        with title.file() as file:
            assert isinstance(file, io.BufferedReader)
            assert file.read(10) == BYTES[:10] and file.tell() == 10
            assert file.seek(-7, io.SEEK_END) == END - 7 and file.read() == BYTES[-7:]
            assert file.read(1) == b""
            copy = io.BytesIO()
            file.seek(0)
            shutil.copyfileobj(file, copy)
            assert copy.getvalue() == BYTES
        raw = title.file(0)
        assert raw.seek(END + 5) == END + 5 and raw.read(3) == b"" and raw.readall() == b""
        assert raw.seek(1) == 1 and raw.readall() == BYTES[1:] and raw.tell() == END
        assert raw.seek(-1, io.SEEK_CUR) == END - 1 and raw.read(9) == BYTES[-1:]
        raises(ValueError, raw.seek, -1)
        raises(ValueError, raw.seek, 0, 77)
        assert not raw.writable()
        raw.close()
        raises(ValueError, raw.read, 1)
        assert title.read(0, 1) == BYTES[:1], "to close a file leaves the title open"


def mappings():
    return Path("/proc/self/maps").read_text().count("memfd:tactus-title")


def maps():
    client = connect()
    title = client.open("/one")
    view = title.map()
    assert view.readonly and len(view) == END and view == BYTES
    raises(TypeError, view.__setitem__, 0, 1)
    part = view[5:10]
    # The map lives as long as a part of the view.
    title.close()
    raises(ValueError, title.read, 0, 1)
    del title, view
    client.close()
    gc.collect()
    assert bytes(part) == BYTES[5:10] and mappings() == 1
    del part
    gc.collect()
    assert mappings() == 0


def errors():
    assert issubclass(tactus.Error, OSError)
    raises(OSError, tactus.connect, "/no/such/socket")
    client = connect()
    error = raises(tactus.Error, client.open, "/missing")
    assert error.errno == errno.ENOENT and "/missing" in error.strerror, error
    title = client.open("/one")
    assert raises(tactus.Error, client.submit, title, 0, 1 << 30).errno == errno.ENOBUFS
    raises(tactus.Error, client.submit, title, 0, 0)
    raises(OverflowError, title.read, -1, 5)
    raises(TypeError, title.read, 0)
    raises(ValueError, client.wait, -1)
    tokens = []
    for length in (4096, 1):
        try:
            while True:
                tokens.append(client.submit(title, 0, length))
        except tactus.Error as error:
            assert error.errno in (errno.ENOBUFS, errno.EAGAIN), error
    assert len(tokens) == 256 and client.room == 0
    assert raises(tactus.Error, title.read, 0, 5).errno == errno.EAGAIN
    for _ in tokens:
        assert client.wait(60).data[:1] == BYTES[:1]
    assert client.wait() is None and client.poll() is None


def requests():
    client = connect(data=1 << 20, spin=0)
    title = client.open("/one")
    assert client.wait() is None, "nothing is under way"
    when = time.monotonic_ns() + 20_000_000
    offsets = {client.submit(title, offset, 1000, when): offset for offset in range(0, 9000, 1000)}
    assert client.wait(0.001) is None and client.poll() is None
    while offsets:
        completion = client.poll()
        if completion is None:
            if client.arm():
                select.select([client.fileno()], [], [])
                client.disarm()
            continue
        offset = offsets.pop(completion.token)
        assert completion.data == BYTES[offset : offset + 1000] and completion.at >= when
    # A wait ends with the exception of a signal. That of the keyboard may be ignored here.
    client.submit(title, 0, 1, time.monotonic_ns() + 3_600_000_000_000)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    raises(KeyboardInterrupt, client.wait)
    # Threads share a client.
    found = []
    threads = [
        threading.Thread(
            target=lambda at=at: found.append(title.read(at, 100_000) == BYTES[at : at + 100_000])
        )
        for at in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 8


def event_loop():
    async def program():
        async with await tactus.aio.connect(SOCKET, data=256 << 10) as client:
            assert (await client.stat("/one")).length == END
            assert len(await client.list()) == 5
            title = await client.open("/one")
            assert (title.length, title.rate) == (END, 8_000_000)
            # More than there are places and room for.
            offsets = range(0, 600 * 1500, 1500)
            parts = await asyncio.gather(*(title.read(offset, 1500) for offset in offsets))
            assert parts == [BYTES[offset : offset + 1500] for offset in offsets]
            wholes = await asyncio.gather(*(title.read(offset, END) for offset in range(3)))
            assert wholes == [BYTES[offset:] for offset in range(3)]
            when = time.monotonic_ns() + 20_000_000
            assert await title.read(5, 5, when) == BYTES[5:10] and time.monotonic_ns() >= when
            never = asyncio.ensure_future(title.read(0, 5, time.monotonic_ns() + 10**13))
            await asyncio.sleep(0.01)
            never.cancel()
            assert await title.read(END - 1, 5) == BYTES[-1:]
            try:
                await client.open("/missing")
            except tactus.Error as error:
                assert error.errno == errno.ENOENT
            else:
                raise AssertionError("a title that is missing was opened")

    asyncio.run(program())


def streams():
    with connect() as client:
        with client.open("/one") as title:
            error = raises(tactus.Error, lambda: client.stream(title, rate=1))
            assert error.errno == errno.EBUSY and "no room" in error.strerror, error
            stream = client.stream(title, rate=16_000_000, first=3)
        assert (stream.rate, stream.position, stream.at_end) == (16_000_000, 3, False)
        assert stream.take(5) == BYTES[3:8] and stream.read(5) == BYTES[8:13]
        assert stream.read(0) == b""
        buffer = bytearray(7)
        assert stream.read_into(buffer) == 7 and buffer == BYTES[13:20]
        assert stream.ready() == END - 20
        assert raises(tactus.Error, stream.seek, END).errno == errno.EINVAL
        with stream.file() as file:
            assert isinstance(file, io.BufferedReader) and file.read(9) == BYTES[20:29]
            assert file.read() == BYTES[29:]
        assert stream.at_end and stream.read(1) == stream.take(1) == b"" and stream.ready() == 0
        stream.close()
        raises(ValueError, stream.read, 1)


def writers():
    with connect() as client:
        writer = client.create("/one", length=10, replace="nothing")
        assert writer.write(b"abc") == 3 and writer.write(memoryview(b"defg")[::2]) == 2
        assert writer.write(bytearray(b"hij")) == 3 and writer.length == 8
        writer.sync()
        writer.publish(7)
        raises(ValueError, writer.write, b"x")
        raises(ValueError, lambda: client.create("/one", replace="all"))
        with client.create("/two") as writer, writer.file() as file:
            assert isinstance(file, io.BufferedWriter)
            shutil.copyfileobj(io.BytesIO(BYTES), file)
            assert file.tell() == END
        try:
            with client.create("/three") as writer:
                raise KeyError
        except KeyError:
            raises(ValueError, writer.publish)
        client.create("/four").abort()
        client.create("/five").publish()
        client.remove("/a")
        assert raises(tactus.Error, client.create, "/missing").errno == errno.ENOENT


def recordings():
    with connect() as client:
        assert raises(tactus.Error, client.record, "/one", 1).errno == errno.EBUSY
        assert raises(tactus.Error, client.record, "/missing", 5).errno == errno.ENOENT
        recording = client.record("/one", 8_000_000, replace="existing")
        assert (recording.rate, recording.length, recording.durable) == (8_000_000, 0, 0)
        assert recording.ready() > 0 and recording.put(b"abc") == 3
        # More than the ring holds.
        assert recording.write(memoryview(BYTES)) == END and recording.length == END + 3
        assert recording.overruns > 0 and recording.underruns == 0
        assert recording.finish() == END + 3
        raises(ValueError, recording.write, b"x")
        with client.record("/two", 8_000_000) as recording, recording.file(0) as file:
            assert file.write(b"xyz") == 3 and file.writable() and not file.readable()
        raises(ValueError, recording.finish)


def memories():
    with connect() as client:
        writer = client.create_in_memory("/one")
        assert (writer.length, writer.written_back, writer.upload) == (0, 0, "an-upload")
        assert len(writer.view()) == 0
        before = 0
        for length in (5, 300_000, 600_000):
            writer.grow(length)
            view = writer.view()
            assert len(view) == length == writer.length and view[before:] == bytes(length - before)
            view[before:] = BYTES[before:length]
            assert view == BYTES[:length] and writer.view() is view
            writer.write_back(length - 3)
            before = length
        writer.grow(600_001)
        later = writer.view()
        later[600_000] = 7
        view[599_999] ^= 1
        assert len(later) == 600_001 and later[:600_000] == view, "one memory"
        assert raises(tactus.Error, writer.grow, writer.limit + 1).errno == errno.ENOMEM
        assert raises(tactus.Error, writer.write_back, 599_996).errno == errno.EINVAL
        writer.sync(599_998)
        assert writer.written_back == 599_998
        writer.publish(599_999, 7)
        raises(ValueError, writer.view)
        raises(ValueError, writer.grow, 1)
        del writer
        gc.collect()
        assert view[:9] == BYTES[:9], "a view outlives its writer"
        with client.edit_in_memory("/one") as edited:
            assert edited.view() == b"the older version" and edited.written_back == 0
        raises(ValueError, edited.view)
        with client.resume_in_memory("/one", "an-upload") as resumed:
            assert resumed.view() == b"what was synced" and resumed.written_back == 15
        client.create_in_memory("/one", replace="nothing").abort()
        raises(ValueError, lambda: client.create_in_memory("/one", replace="all"))
        client.stat("/one")  # behind the ends of the writers


def reserves():
    with connect() as client, client.open("/one") as title:
        reserve = title.reserve(100_000_000, 4096, tolerance_ns=5)
        assert isinstance(reserve, tactus.Reserve) and reserve.block == 65_536
        assert (reserve.ahead(0, 4096), reserve.ahead(65_530, 10)) == (7_000_000, 14_000_000)
        when = time.monotonic_ns() + reserve.ahead(0, 4096) + 5_000_000
        client.submit(title, 0, 4096, when)
        completion = client.wait(60)
        assert completion.data == BYTES[:4096] and completion.at >= when
        error = raises(tactus.Error, title.reserve, 0, 1)
        assert error.errno == errno.EINVAL and "no interval" in error.strerror, error
        raises(OverflowError, title.reserve, 1, 1 << 32)
        raises(OverflowError, title.reserve, -1, 1)
    raises(ValueError, title.reserve, 1, 1)


def memory_in_event_loop():
    async def program():
        async with await tactus.aio.connect(SOCKET) as client:
            title = await client.open("/one")
            reserve = await title.reserve(100_000_000, 1000)
            when = time.monotonic_ns() + reserve.ahead(5, 1000)
            assert await title.read(5, 1000, when) == BYTES[5:1005] and time.monotonic_ns() >= when
            async with await client.create_in_memory("/two") as writer:
                await writer.grow(10)
                writer.view()[:] = BYTES[:10]
                await writer.write_back(4)
                await writer.sync(7)
                assert (writer.length, writer.written_back) == (10, 7)
                await writer.publish(10)
            (await client.edit_in_memory("/two")).close()
            resumed = await client.resume_in_memory("/two", "an-upload")
            assert resumed.upload == "an-upload"
            await resumed.abort()
            await client.stat("/two")

    asyncio.run(program())


def rings_in_event_loop():
    async def program():
        async with await tactus.aio.connect(SOCKET) as client:
            title = await client.open("/one")

            async def streamed(first):
                async with await client.stream(title, first=first, rate=8_000_000) as stream:
                    assert stream.position == first and stream.rate == 8_000_000
                    return b"".join([data async for data in stream])

            async def recorded():
                async with await client.record("/two", 8_000_000) as recording:
                    assert await recording.write(BYTES) == END
                    assert recording.length == END

            parts = await asyncio.gather(
                streamed(0), streamed(END - 5), recorded(), title.read(0, END)
            )
            assert parts == [BYTES, BYTES[-5:], None, BYTES]
            async with await client.create("/three", length=3) as writer:
                assert await writer.write(b"abc") == 3 and writer.length == 3

    asyncio.run(program())


def closes():
    """A title is open until its reads have ended, whatever the program does with it."""
    client = connect()
    title = client.open("/one")
    client.submit(title, 0, 5)
    title.close()
    del title
    gc.collect()
    client.stat("/one")  # behind a close, if there were one
    print("closed", flush=True)
    assert client.wait().data == BYTES[:5]
    client.stat("/one")


def gone():
    """The server takes three requests, and ends."""
    client = connect()
    title = client.open("/one")
    for offset in range(3):
        client.submit(title, offset, 1)
    for _ in range(3):
        completion = client.wait()
        assert raises(tactus.Error, lambda: completion.data).errno == errno.ECONNRESET
    assert raises(tactus.Error, title.read, 0, 1).errno == errno.ECONNRESET


def gone_in_event_loop():
    async def program():
        async with await tactus.aio.connect(SOCKET) as client:
            title = await client.open("/one")
            reads = (title.read(offset, 1) for offset in range(3))
            results = await asyncio.gather(*reads, return_exceptions=True)
            assert [error.errno for error in results] == [errno.ECONNRESET] * 3, results
            error = (await asyncio.gather(title.read(0, 1), return_exceptions=True))[0]
            assert error.errno == errno.ECONNRESET

    asyncio.run(program())


globals()[PART]()
print(PART)
