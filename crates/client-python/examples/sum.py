"""Prints the sum of all bytes of a title."""

import sys

import tactus

LEN = 64 << 10  # bytes of one read
READS = 4  # reads under way at once


def main(socket: str, path: str) -> None:
    with tactus.connect(socket) as client, client.open(path) as title:
        for nth in range(READS):
            client.submit(title, nth * LEN, LEN)
        following = READS * LEN
        total = 0
        while completion := client.wait():
            total += sum(completion.data)
            if following < title.length:
                client.submit(title, following, LEN)
                following += LEN
        print(total)


if len(sys.argv) != 3:
    sys.exit("usage: sum SOCKET TITLE")
main(*sys.argv[1:])
