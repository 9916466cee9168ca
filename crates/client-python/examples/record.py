"""Records standard input as a title, at a rate in Mbit/s."""

import shutil
import sys

import tactus


def main(socket: str, path: str, rate: str) -> None:
    with tactus.connect(socket) as client, client.record(path, int(rate) * 1_000_000) as recording:
        # To write waits for room, so that the program is held to its rate.
        with recording.file() as file:
            shutil.copyfileobj(sys.stdin.buffer, file)


if len(sys.argv) != 4:
    sys.exit("usage: record SOCKET TITLE MBIT")
main(*sys.argv[1:])
