#!/bin/sh
# Upload a raw cloud image as a template, then make guests' disks of it and enlarge them.
#
#     upload_and_clone.sh debian.raw gluster://host/vm 20G web-01 web-02 ...
#
set -eu
image=${1:?usage: upload_and_clone.sh IMAGE gluster://host/volume SIZE GUEST...}
volume=${2:?a volume}
size=${3:?a size}
shift 3

glustx fs mkdir -p "$volume/templates" "$volume/guests"
template=$volume/templates/$(basename "$image")

# Zeroes of the image become holes; it is durable before it gets its name. -n: a template that is there is never replaced.
glustx fs cp -n --sparse always --fsync "$image" "$template"

for guest in "$@"; do
    disk=$volume/guests/$guest.img
    glustx fs cp -n --fsync "$template" "$disk"      # the brick copies; holes stay holes
    qemu-img resize -q -f raw "$disk" "$size"        # the copy grows, never the template
done
glustx fs ls -l --readable "$volume/guests"
glustx fs du -s --readable "$volume/guests"
