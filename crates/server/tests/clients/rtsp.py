"""Plays a title by aiortsp: for a while, a pause, and then from another place, and faster.

Arguments: the address (rtsp:// for UDP, rtspt:// for the connection), where to go, and three files
for the payload before, after, and at four times the speed. Fails when a packet is missing or one
comes during the pause.
"""

import asyncio
import sys
from urllib.parse import urlparse

from aiortsp.rtsp.connection import RTSPConnection
from aiortsp.rtsp.session import RTSPMediaSession
from aiortsp.transport import RTPTransportClient, transport_for_scheme

SECONDS = 2


class Taker(RTPTransportClient):
    def __init__(self):
        self.packets = []

    def handle_rtp(self, rtp):
        self.packets.append(rtp)

    def take(self, path):
        with open(path, "wb") as file:
            for packet in self.packets:
                file.write(packet.data)
        count = len(self.packets)
        self.packets = []
        return count


def missing(packets):
    pairs = zip(packets, packets[1:])
    return [one.seq for one, other in pairs if (one.seq + 1) % 65536 != other.seq]


async def play(url, elsewhere, before, after, fast):
    at = urlparse(url)
    transport_class = transport_for_scheme(at.scheme)
    plain = url.replace("rtspt://", "rtsp://")
    async with RTSPConnection(at.hostname, at.port, timeout=30) as connection:
        async with transport_class(connection, timeout=30) as transport:
            async with RTSPMediaSession(connection, plain, transport=transport) as session:
                taker = Taker()
                transport.subscribe(taker)
                await session._send("PLAY", headers={"Range": "npt=0-"})
                await asyncio.sleep(SECONDS)
                await session.keep_alive()
                await session.pause()
                # What was under way by UDP.
                await asyncio.sleep(1)
                held = len(taker.packets)
                assert not missing(taker.packets), f"before {missing(taker.packets)}"
                last = taker.packets[-1].seq
                await asyncio.sleep(1)
                assert len(taker.packets) == held, "packets in a pause"
                first_part = taker.take(before)
                answer = await session._send("PLAY", headers={"Range": f"npt={elsewhere}-"})
                await asyncio.sleep(SECONDS)
                await session.pause()
                await asyncio.sleep(1)
                assert not missing(taker.packets), f"after {missing(taker.packets)}"
                assert taker.packets[0].seq == (last + 1) % 65536, "numbers go on"
                print(first_part, taker.take(after), answer.headers.get("range"))
                headers = {"Range": "npt=0-", "Scale": "4"}
                answer = await session._send("PLAY", headers=headers)
                await asyncio.sleep(SECONDS)
                await session.pause()
                await asyncio.sleep(1)
                assert not missing(taker.packets), f"faster {missing(taker.packets)}"
                print(taker.take(fast), answer.headers.get("scale"))


asyncio.run(play(*sys.argv[1:]))
