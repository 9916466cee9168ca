"""Plays a title to its end by GStreamer, and writes what came.

Arguments: the version of RTSP (1-0, 2-0), the address, the protocol (udp, tcp), and the file. It ends with what rtspsrc
says is the end; an error fails, and so does no end. How rtspsrc goes down afterwards is its own affair: what its thread
is about to ask the server can slip past the word that interrupts it.

What comes is taken where it leaves the depayloader, behind the queue that waits for packets. A sink would cut it: the
depayloader makes a segment of the first packet's arrival and the length that the answer to PLAY tells, and a sink drops
what lies behind it. Whatever comes a moment later than the first packet promised, as on a machine without time, is
then missing at the end.
"""

import os
import socket
import sys
import threading

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstRtsp", "1.0")
from gi.repository import Gst, GstRtsp  # noqa: E402

# Longer than a machine takes that has next to no time for it.
PATIENCE = 600
# What it may take to go down.
GOODBYE = 60
# The queue takes nothing any more when the title's length and this have passed; it may wait as long for its first packet.
LATENCY = 20
# More than a whole title, so that a machine without time loses nothing.
BUFFER = 32 << 20
# linux/socket.h: over the limit that others have.
SO_RCVBUFFORCE = 33


def widen(_source, element):
    """Root's sockets may hold as much as they want."""
    used = element.find_property("used-socket") and element.get_property("used-socket")
    if used:
        with socket.socket(fileno=socket.dup(used.get_fd())) as own:
            try:
                own.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
            except PermissionError:
                pass


def play(version, url, protocol, path):
    Gst.init(None)
    pipeline = Gst.parse_launch(
        f"rtspsrc name=source location={url} protocols={protocol} default-rtsp-version={version}"
        f" latency={LATENCY * 1000} timeout=0 tcp-timeout=0 udp-buffer-size={BUFFER}"
        " ! rtpmp2tdepay name=depay"
        " ! fakesink sync=false async=false"
    )
    came = []

    def take(_pad, info):
        buffer = info.get_buffer()
        came.append(buffer.extract_dup(0, buffer.get_size()))
        return Gst.PadProbeReturn.OK

    depay = pipeline.get_by_name("depay")
    depay.get_static_pad("src").add_probe(Gst.PadProbeType.BUFFER, take)
    spoken = set()

    def note(_source, message):
        if message.get_type() == GstRtsp.RTSPMsgType.REQUEST:
            spoken.add(message.parse_request()[3].value_nick)
        return True

    # Where its version is refused, rtspsrc goes on in another one.
    source = pipeline.get_by_name("source")
    source.connect("before-send", note)
    source.connect("element-added", widen)
    bus = pipeline.get_bus()
    pipeline.set_state(Gst.State.PLAYING)
    ends = Gst.MessageType.EOS | Gst.MessageType.ERROR
    message = bus.timed_pop_filtered(PATIENCE * Gst.SECOND, ends)
    assert message, f"it does not end: {len(came)} packets came"
    assert message.type == Gst.MessageType.EOS, message.parse_error()
    assert spoken == {version}, spoken
    with open(path, "wb") as file:
        file.write(b"".join(came))
    down = threading.Thread(target=pipeline.set_state, args=(Gst.State.NULL,), daemon=True)
    down.start()
    down.join(GOODBYE)


try:
    play(*sys.argv[1:])
except BaseException as error:
    print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    os._exit(1)
# Not by way of what a thread of GStreamer may still hold.
os._exit(0)
