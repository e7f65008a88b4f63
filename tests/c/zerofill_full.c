/* glfs_zerofill and glfs_fallocate that cannot fit on the brick: ENOSPC, with size, data and free space as before.
 * The argument is a number of bytes that the brick does not have. */
#include "gf.h"
#include <sys/statvfs.h>

static int64_t free_space(glfs_t *fs)
{
    struct statvfs st;
    CHECK(glfs_statvfs(fs, "/", &st) == 0);
    return (int64_t)st.f_bfree * st.f_frsize;
}

int main(int argc, char **argv)
{
    glfs_t *fs = gf_connect(argc, argv);
    CHECK(argc == 6);
    int64_t size = atoll(argv[5]);
    glfs_fd_t *fd = glfs_creat(fs, argv[4], O_RDWR | O_EXCL, 0644);
    CHECK(fd != NULL);
    write_pattern(fd, 0, 1 * MIB, 7);
    CHECK(glfs_fsync(fd, NULL, NULL) == 0);
    int64_t before = free_space(fs);
    CHECK(before < size);
    FAILS(glfs_zerofill(fd, 1 * MIB, size), ENOSPC);
    CHECK(size_of(fd) == 1 * MIB);
    FAILS(glfs_fallocate(fd, 0, 1 * MIB, size), ENOSPC);
    CHECK(size_of(fd) == 1 * MIB);
    int64_t after = free_space(fs);
    if (llabs(after - before) > 2 * MIB) { /* a file system may have made metadata meanwhile */
        fprintf(stderr, "free space was %" PRId64 ", is %" PRId64 "\n", before, after);
        _exit(1);
    }
    EXPECT_PATTERN(fd, 0, 1 * MIB, 7);
    CHECK(glfs_zerofill(fd, 0, 2 * MIB) == 0);
    EXPECT_ZEROS(fd, 0, 2 * MIB);
    done();
}
