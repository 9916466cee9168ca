#!/bin/busybox sh
# The first and only process of the emulated machine: makes a wire with fq at one end, and runs the
# test on it.
say() { /bin/busybox echo "$@"; }
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox insmod /modules/sch_fq.ko
/bin/busybox insmod /modules/veth.ko
/programs/ip link add wire0 type veth peer name wire1
# Both ends are this host's: what comes from its own address is taken nevertheless.
for key in all/rp_filter wire1/rp_filter; do say 0 > /proc/sys/net/ipv4/conf/$key; done
say 1 > /proc/sys/net/ipv4/conf/wire1/accept_local
/programs/ip address add 10.9.0.1/24 dev wire0
for device in lo wire0 wire1; do /programs/ip link set $device up; done
/programs/ip route add 224.0.0.0/4 dev wire0
/programs/tc qdisc replace dev wire0 root fq
cd /tmp
TACTUS_FQ=1 /programs/test --test-threads=1 --nocapture && say "all went well"
# What has been thrown away.
/programs/tc -s qdisc show dev wire0
say o > /proc/sysrq-trigger
/bin/busybox sleep 60
