#!/usr/bin/python3
"""GStreamer's RTSP server, for `tactus-bench rtsp-check` to be tried on.

    gst_rtsp_server.py MOVIE [PORT]

plays the video of MOVIE (MP4, H.264) at /play, and takes video (H.264) at /record from user `anna`
with the password `correct-horse`. Debian: gir1.2-gst-rtsp-server-1.0, gstreamer1.0-plugins-good,
gstreamer1.0-plugins-bad, python3-gi.
"""

import sys

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstRtsp", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtsp, GstRtspServer


def main():
    movie = sys.argv[1]
    port = sys.argv[2] if len(sys.argv) > 2 else "8654"
    Gst.init(None)
    server = GstRtspServer.RTSPServer(service=port)
    auth = GstRtspServer.RTSPAuth()
    auth.set_supported_methods(GstRtsp.RTSPAuthMethod.DIGEST)
    anna = GstRtspServer.RTSPToken()
    anna.set_string("media.factory.role", "anna")
    auth.add_digest("anna", "correct-horse", anna)
    anybody = GstRtspServer.RTSPToken()
    anybody.set_string("media.factory.role", "anybody")
    auth.set_default_token(anybody)
    server.set_auth(auth)

    play = GstRtspServer.RTSPMediaFactory()
    play.set_launch(
        f"( filesrc location={movie} ! qtdemux ! h264parse ! rtph264pay name=pay0 pt=96 )"
    )
    record = GstRtspServer.RTSPMediaFactory()
    record.set_launch("( rtph264depay name=depay0 ! h264parse ! fakesink )")
    record.set_transport_mode(GstRtspServer.RTSPTransportMode.RECORD)
    # Who may see a medium and not begin it is asked for a password.
    for factory, beginners in ((play, ("anybody", "anna")), (record, ("anna",))):
        permissions = GstRtspServer.RTSPPermissions()
        for role in ("anybody", "anna"):
            permissions.add_permission_for_role(role, "media.factory.access", True)
            permissions.add_permission_for_role(role, "media.factory.construct", role in beginners)
        factory.set_permissions(permissions)
    mounts = server.get_mount_points()
    mounts.add_factory("/play", play)
    mounts.add_factory("/record", record)
    server.attach(None)
    print(f"rtsp://127.0.0.1:{port}/play rtsp://127.0.0.1:{port}/record", flush=True)
    # Sessions that nobody uses any more.
    GLib.timeout_add_seconds(2, lambda: server.get_session_pool().cleanup() or True)
    GLib.MainLoop().run()


main()
