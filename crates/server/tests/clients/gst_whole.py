"""Plays a title to its end by GStreamer, and writes what came.

Arguments: the version of RTSP (1-0, 2-0), the address, the protocol (udp, tcp, udp-mcast), and the
file. It ends when the sender has said goodbye and nothing more comes; an error fails, and so does
no goodbye.

What comes is taken where it leaves rtspsrc's transport, in front of the queue that waits for
packets, the depayloader and the sink. Behind them a busy machine sees less than has come: the
depayloader makes a segment of the first packet's arrival and the length that the answer to PLAY
tells, and a sink drops what lies behind it; and the queue may keep what it has, and the end too,
when it gets time late.
"""

import os
import socket
import sys
import threading
import time

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstRtsp", "1.0")
from gi.repository import Gst, GstRtsp  # noqa: E402

# Longer than a machine takes that has next to no time for it.
PATIENCE = 600
# When nothing has come for so long after the goodbye, all has: over UDP it has a port of its own.
QUIET = 2
# More than a whole title, so that a machine without time loses nothing.
BUFFER = 32 << 20
# linux/socket.h: over the limit that others have.
SO_RCVBUFFORCE = 33
RTP_HEADER = 12
PLAIN = 0x80  # version 2, without padding, extension and sources


def widen(_source, element):
    """Root's sockets may hold as much as they want."""
    used = element.find_property("used-socket") and element.get_property("used-socket")
    if used:
        with socket.socket(fileno=socket.dup(used.get_fd())) as own:
            try:
                own.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
            except PermissionError:
                pass


class Came:
    """What has come, and when the last of it."""

    def __init__(self):
        self.payloads = []
        self.odd = []
        self.last = time.monotonic()
        self.goodbye = threading.Event()

    def watch(self, _source, manager):
        manager.connect("pad-added", self.tap)
        manager.connect("on-bye-ssrc", lambda *_: self.goodbye.set())

    def tap(self, _manager, pad):
        if pad.get_name().startswith("recv_rtp_sink"):
            kinds = Gst.PadProbeType.BUFFER | Gst.PadProbeType.BUFFER_LIST
            pad.add_probe(kinds, self.take)

    def take(self, _pad, info):
        if info.type & Gst.PadProbeType.BUFFER_LIST:
            some = info.get_buffer_list()
            buffers = [some.get(at) for at in range(some.length())]
        else:
            buffers = [info.get_buffer()]
        for buffer in buffers:
            self.add(buffer.extract_dup(0, buffer.get_size()))
        self.last = time.monotonic()
        return Gst.PadProbeReturn.OK

    def add(self, packet):
        # What fails in a probe is printed and forgotten.
        if packet[0] != PLAIN:
            self.odd.append(packet[:RTP_HEADER])
        self.payloads.append(packet[RTP_HEADER:])

    def is_whole(self):
        return self.goodbye.is_set() and time.monotonic() - self.last > QUIET


def play(version, url, protocol, path):
    Gst.init(None)
    # Before PLAY rtspsrc would send five packets of 200 random bytes, for the sake of NAT. Those to
    # a group it receives itself, and a random byte is PLAIN once in 256 packets.
    pipeline = Gst.parse_launch(
        f"rtspsrc name=source location={url} protocols={protocol} default-rtsp-version={version}"
        f" timeout=0 tcp-timeout=0 udp-buffer-size={BUFFER} nat-method=none"
        " ! rtpmp2tdepay ! fakesink sync=false async=false"
    )
    came, spoken = Came(), set()

    def note(_source, message):
        if message.get_type() == GstRtsp.RTSPMsgType.REQUEST:
            spoken.add(message.parse_request()[3].value_nick)
        return True

    # Where its version is refused, rtspsrc goes on in another one.
    source = pipeline.get_by_name("source")
    source.connect("before-send", note)
    source.connect("element-added", widen)
    source.connect("new-manager", came.watch)
    bus = pipeline.get_bus()
    pipeline.set_state(Gst.State.PLAYING)
    end = time.monotonic() + PATIENCE
    while not came.is_whole():
        assert time.monotonic() < end, f"no goodbye behind {len(came.payloads)} packets"
        message = bus.timed_pop_filtered(Gst.SECOND // 10, Gst.MessageType.ERROR)
        assert not message, message.parse_error()
    assert spoken == {version}, spoken
    assert not came.odd, came.odd
    with open(path, "wb") as file:
        file.write(b"".join(came.payloads))
    return pipeline


try:
    playing = play(*sys.argv[1:])
except BaseException as error:
    print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    os._exit(1)
# How GStreamer goes down is its own affair, and may take as long as its last request does.
os._exit(0)
