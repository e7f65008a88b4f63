#!/bin/sh
# Make an image whose whole space is zeroed, check that it reads as zeroes, and wipe a range of one that is in use.
#
#     verify_zeroes.sh gluster://host/vm/scratch.img 1G
#
# Exit code 3 when something else than zeroes is found.
set -eu
image=${1:?usage: verify_zeroes.sh gluster://host/volume/image SIZE}
size=${2:?usage: verify_zeroes.sh gluster://host/volume/image SIZE}

glustx provision create "$image" --size "$size" --prealloc full --force
glustx provision verify "$image" --full        # every byte is read back, holes too

# Somebody has used it ...
head -c 1M /dev/urandom | glustx fs cp - "$image.used"
if glustx provision verify "$image.used" 2>/dev/null; then
    echo "random data that is all zeroes?" >&2
    exit 1
fi

# ... and before it goes to somebody else it is zeroed on the brick, and checked.
glustx provision zero "$image.used"
glustx provision verify "$image.used" --full
glustx provision info "$image.used" --output json
glustx fs rm "$image.used"
