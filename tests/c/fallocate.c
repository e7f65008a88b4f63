/* glfs_fallocate: data kept, the size moved only without keep_size. Leaves a file of 5 MiB that holds the space of [0, 8)
 * and [16, 17) MiB; the caller looks at that on the brick, because stock reports no more blocks than the size needs. */
#include "gf.h"

int main(int argc, char **argv)
{
    glfs_t *fs = gf_connect(argc, argv);
    glfs_fd_t *fd = glfs_creat(fs, argv[4], O_RDWR | O_EXCL, 0644);
    CHECK(fd != NULL);
    write_pattern(fd, 0, 10000, 1);

    CHECK(glfs_fallocate(fd, 1, 0, 8 * MIB) == 0);
    CHECK(size_of(fd) == 10000);
    EXPECT_PATTERN(fd, 0, 10000, 1);

    CHECK(glfs_fallocate(fd, 1, 16 * MIB, 1 * MIB) == 0);
    CHECK(size_of(fd) == 10000);

    CHECK(glfs_fallocate(fd, 0, 4 * MIB, 1 * MIB) == 0);
    CHECK(size_of(fd) == 5 * MIB && space_of(fd) >= 5 * MIB);
    EXPECT_PATTERN(fd, 0, 10000, 1);
    EXPECT_ZEROS(fd, 10000, 5 * MIB - 10000);

    CHECK(glfs_fallocate(fd, 0, 0, 1 * MIB) == 0);
    CHECK(size_of(fd) == 5 * MIB);
    EXPECT_PATTERN(fd, 0, 10000, 1);

    FAILS(glfs_fallocate(fd, 0, 0, 0), EINVAL);
    FAILS(glfs_fallocate(fd, 0, -1, 4096), EINVAL);
    glfs_fd_t *reader = glfs_open(fs, argv[4], O_RDONLY);
    CHECK(reader != NULL);
    FAILS(glfs_fallocate(reader, 0, 0, 4096), EBADF);
    CHECK(size_of(fd) == 5 * MIB);
    done();
}
