"""Builds a title in memory out of standard input, durable after each megabyte."""

import sys

import tactus

STEP = 1 << 20  # the memory grows by so many bytes


def main(socket: str, path: str) -> None:
    with tactus.connect(socket) as client, client.create_in_memory(path) as writer:
        length = 0
        while True:
            if length == writer.length:
                # All bytes so far are final; they outlive a crash from here on.
                writer.sync(length)
                writer.grow(length + STEP)
            # The bytes are read into the memory that the server shares.
            count = sys.stdin.buffer.readinto(writer.view()[length:])
            if not count:
                break
            length += count
        writer.publish(length)


if len(sys.argv) != 3:
    sys.exit("usage: build SOCKET TITLE")
main(*sys.argv[1:])
