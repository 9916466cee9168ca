#!/bin/sh
# Makes the two clips beside this file from public test sources. See README.md for why each option
# is there.
set -eu
cd "$(dirname "$0")"

ffmpeg -v error -y \
    -f lavfi -i "testsrc2=size=1280x720:rate=25:duration=1.2" \
    -f lavfi -i "aevalsrc=0.25*sin(2*PI*440*t)*sin(PI*t/1.2)^2:s=48000:c=mono:d=1.2" \
    -map 0:v -map 1:a -map_metadata -1 -fflags +bitexact \
    -c:v libx264 -preset slow -profile:v high -pix_fmt yuv420p -threads 1 \
    -g 30 -keyint_min 30 -sc_threshold 0 -bf 1 -flags:v +cgop+bitexact \
    -b:v 2900k -maxrate 2900k -bufsize 1500k \
    -c:a mp2 -b:a 128k -ac 2 -flags:a +bitexact \
    -f mpegts -muxrate 3760000 -pcr_period 20 -pes_payload_size 1700 \
    -metadata service_name="Tactus demo" -metadata service_provider="Tactus" \
    clip.ts

ffmpeg -v error -y \
    -f lavfi -i "testsrc2=size=640x360:rate=25:duration=1.92" \
    -f lavfi -i "aevalsrc=0.25*sin(2*PI*440*t)*sin(PI*t/1.92)^2:s=48000:c=mono:d=1.92" \
    -map 0:v -map 1:a -map_metadata -1 -fflags +bitexact \
    -c:v libx264 -preset slow -profile:v high -pix_fmt yuv420p -threads 1 \
    -g 48 -keyint_min 48 -sc_threshold 0 -bf 2 -flags:v +cgop+bitexact \
    -b:v 1000k -maxrate 1000k -bufsize 500k \
    -c:a aac -b:a 96k -ac 2 -flags:a +bitexact \
    -movflags +faststart clip.mp4
