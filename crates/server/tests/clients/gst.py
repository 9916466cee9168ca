"""Plays a title by GStreamer: for a while, a pause, then from another place, and faster.

Arguments: the version of RTSP (1-0, 2-0), the address, the protocol (udp, tcp, udp-mcast), where to
go, and three files for what came: with the pause in it, from the other place on, and at four times
the speed. Without files it is a movie, whose video frames are counted, the fast ones too. Fails
when something comes during the pause, and when another version is spoken.
"""

import sys
import time

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstRtsp", "1.0")
from gi.repository import Gst, GstRtsp  # noqa: E402

SECONDS = 2
PATIENCE = 60


class Taker:
    """What goes into the depayloader: since a flush the packets, each with its number."""

    def __init__(self, pipeline):
        self.packets = []
        self.pad = pipeline.get_by_name("depay").get_static_pad("sink")
        self.pad.add_probe(Gst.PadProbeType.BUFFER, self.take)
        self.pad.add_probe(Gst.PadProbeType.EVENT_FLUSH, self.flush)

    def take(self, _pad, info):
        buffer = info.get_buffer()
        self.packets.append(buffer.extract_dup(0, buffer.get_size()))
        return Gst.PadProbeReturn.OK

    def flush(self, _pad, info):
        if info.get_event().type == Gst.EventType.FLUSH_STOP:
            self.packets = []
        return Gst.PadProbeReturn.OK

    def run(self):
        end = time.monotonic() + PATIENCE
        while not self.packets and time.monotonic() < end:
            time.sleep(0.05)
        assert self.packets, "nothing has come"
        time.sleep(SECONDS)

    def count(self, step, gaps_max, least=SECONDS * 10):
        """Video frames: their last packets are marked.

        What is under way when it pauses, rtspsrc may throw away.
        """
        packets = list(self.packets)
        numbers = [int.from_bytes(packet[2:4], "big") for packet in packets]
        missing = [b for a, b in zip(numbers, numbers[1:]) if (a + 1) % 65536 != b]
        assert len(missing) <= gaps_max, f"{step}: before {missing}"
        frames = sum(packet[1] >> 7 for packet in packets)
        assert frames > least, f"{step}: {frames} video frames"

    def write(self, path):
        with open(path, "wb") as file:
            file.write(b"".join(packet[12:] for packet in list(self.packets)))

    def begin_as_answered(self):
        # rtspsrc may hand on what was under way when it was flushed: the first is what the answer
        # names.
        known, base = self.pad.get_current_caps().get_structure(0).get_uint("seqnum-base")
        assert known, "the answer to PLAY names the first packet"
        packets = list(self.packets)
        numbers = [int.from_bytes(packet[2:4], "big") for packet in packets]
        self.packets = packets[numbers.index(base) :]


def play(version, url, protocol, elsewhere, before=None, after=None, fast=None):
    Gst.init(None)
    depay = "rtpmp2tdepay" if before else "rtph264depay"
    pipeline = Gst.parse_launch(
        f"rtspsrc name=source location={url} protocols={protocol} default-rtsp-version={version}"
        f" latency=500 nat-method=none ! {depay} name=depay ! fakesink sync=false async=false"
    )
    spoken = set()

    def note(_source, message):
        if message.get_type() == GstRtsp.RTSPMsgType.REQUEST:
            spoken.add(message.parse_request()[3].value_nick)
        return True

    # Where its version is refused, rtspsrc goes on in another one.
    pipeline.get_by_name("source").connect("before-send", note)
    taker = Taker(pipeline)
    bus = pipeline.get_bus()
    pipeline.set_state(Gst.State.PLAYING)
    taker.run()
    pipeline.set_state(Gst.State.PAUSED)
    time.sleep(1)
    held = len(taker.packets)
    time.sleep(1)
    assert len(taker.packets) == held, "something came in a pause"
    pipeline.set_state(Gst.State.PLAYING)
    time.sleep(SECONDS)
    if before:
        taker.write(before)
    else:
        taker.count("over a pause", 1)

    def go(rate, seconds, flags):
        flags |= Gst.SeekFlags.FLUSH
        start = (Gst.SeekType.SET, int(float(seconds) * Gst.SECOND))
        assert pipeline.seek(rate, Gst.Format.TIME, flags, *start, Gst.SeekType.NONE, -1)
        taker.run()
        taker.begin_as_answered()

    go(1.0, elsewhere, Gst.SeekFlags.KEY_UNIT)
    if before:
        taker.write(after)
    else:
        taker.count("after a seek", 0)
    # To skip is what it calls video frames that are left out: it sends Scale, and otherwise Speed.
    go(4.0, 0, Gst.SeekFlags.SKIP)
    if before:
        taker.write(fast)
    else:
        taker.count("faster", 0, 1)
    error = bus.pop_filtered(Gst.MessageType.ERROR)
    pipeline.set_state(Gst.State.NULL)
    assert error is None, error.parse_error()
    assert spoken == {version}, spoken


play(*sys.argv[1:])
