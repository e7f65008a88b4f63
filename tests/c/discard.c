/* glfs_discard: a hole where the range was, the size and everything else as before. */
#include "gf.h"

int main(int argc, char **argv)
{
    glfs_t *fs = gf_connect(argc, argv);
    glfs_fd_t *fd = glfs_creat(fs, argv[4], O_RDWR | O_EXCL, 0644);
    CHECK(fd != NULL);
    write_pattern(fd, 0, 4 * MIB, 1);
    CHECK(glfs_fsync(fd, NULL, NULL) == 0);
    int64_t space = space_of(fd);
    CHECK(space >= 4 * MIB);

    CHECK(glfs_discard(fd, 1 * MIB, 2 * MIB) == 0);
    CHECK(size_of(fd) == 4 * MIB);
    CHECK(space_of(fd) <= space - 2 * MIB + 64 * KIB); /* a split extent may cost a block */
    CHECK(glfs_lseek(fd, 0, SEEK_HOLE) == 1 * MIB);
    CHECK(glfs_lseek(fd, 1 * MIB, SEEK_DATA) == 3 * MIB);
    EXPECT_PATTERN(fd, 0, 1 * MIB, 1);
    EXPECT_ZEROS(fd, 1 * MIB, 2 * MIB);
    EXPECT_PATTERN(fd, 3 * MIB, 1 * MIB, 1);

    /* Odd edges, and a range that runs past the end. */
    CHECK(glfs_discard(fd, 1001, 9999) == 0);
    EXPECT_PATTERN(fd, 0, 1001, 1);
    EXPECT_ZEROS(fd, 1001, 9999);
    EXPECT_PATTERN(fd, 11000, 1 * MIB - 11000, 1);
    CHECK(glfs_discard(fd, 4 * MIB - 100, 1 * MIB) == 0);
    CHECK(size_of(fd) == 4 * MIB);
    EXPECT_PATTERN(fd, 3 * MIB, 1 * MIB - 100, 1);
    EXPECT_ZEROS(fd, 4 * MIB - 100, 100);

    glfs_fd_t *reader = glfs_open(fs, argv[4], O_RDONLY);
    CHECK(reader != NULL);
    FAILS(glfs_discard(reader, 0, 4096), EBADF);
    EXPECT_PATTERN(fd, 0, 1001, 1);
    done();
}
