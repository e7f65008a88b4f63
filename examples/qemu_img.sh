#!/bin/sh
# Make a qcow2 overlay for a guest on a golden image and look at it, with QEMU's own tools. QEMU reaches the volume by its
# gluster driver; glustx serves it.
#
#     qemu_img.sh gluster://host/vm 10G
#
# Needs qemu-utils and qemu-block-extra.
set -eu
volume=${1:?usage: qemu_img.sh gluster://host/volume SIZE}
size=${2:?usage: qemu_img.sh gluster://host/volume SIZE}

# The golden image: all of its space is taken on the brick at once, by one ZEROFILL.
glustx fs mkdir -p "$volume/golden" "$volume/guests"
glustx provision create "$volume/golden/base.img" --size "$size" --prealloc full --mode 0644

# A guest's disk that holds only what differs from it. -F: the format is told, never guessed.
qemu-img create -q -f qcow2 -F raw -b "$volume/golden/base.img" "$volume/guests/one.qcow2"

# Both as QEMU sees them.
qemu-img info "$volume/golden/base.img"
qemu-img info --backing-chain "$volume/guests/one.qcow2"
qemu-img check -q "$volume/guests/one.qcow2" && echo "the overlay is sound"
