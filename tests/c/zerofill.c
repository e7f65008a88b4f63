/* glfs_zerofill: what it zeroes, what it leaves, how the size moves and which calls it refuses.
 * The argument is the errno that the brick's file system gives for 4 KiB at 2^62, 0 if it takes it. */
#include "gf.h"

int main(int argc, char **argv)
{
    glfs_t *fs = gf_connect(argc, argv);
    CHECK(argc == 6);
    int huge_errno = atoi(argv[5]);
    glfs_fd_t *fd = glfs_creat(fs, argv[4], O_RDWR | O_EXCL, 0644);
    CHECK(fd != NULL);

    /* Odd edges inside a pattern: only the range changes. */
    write_pattern(fd, 0, 64 * KIB, 1);
    CHECK(glfs_lseek(fd, 77, SEEK_SET) == 77);
    CHECK(glfs_zerofill(fd, 3, 10001) == 0);
    CHECK(glfs_lseek(fd, 0, SEEK_CUR) == 77);
    EXPECT_PATTERN(fd, 0, 3, 1);
    EXPECT_ZEROS(fd, 3, 10001);
    EXPECT_PATTERN(fd, 10004, 64 * KIB - 10004, 1);
    CHECK(size_of(fd) == 64 * KIB);

    /* Across the end: the file grows to the end of the range. */
    CHECK(glfs_zerofill(fd, 60000, 10000) == 0);
    CHECK(size_of(fd) == 70000);
    EXPECT_PATTERN(fd, 10004, 60000 - 10004, 1);
    EXPECT_ZEROS(fd, 60000, 10000);

    /* Beyond the end: the gap reads as zeros too. */
    CHECK(glfs_ftruncate(fd, 11000, NULL, NULL) == 0);
    CHECK(glfs_zerofill(fd, 50000, 4096) == 0);
    CHECK(size_of(fd) == 54096);
    EXPECT_PATTERN(fd, 10004, 11000 - 10004, 1);
    EXPECT_ZEROS(fd, 11000, 43096);

    /* The last and the first byte. */
    write_pattern(fd, 0, 54096, 2);
    CHECK(glfs_zerofill(fd, 54095, 1) == 0 && glfs_zerofill(fd, 0, 1) == 0);
    EXPECT_ZEROS(fd, 54095, 1);
    EXPECT_ZEROS(fd, 0, 1);
    EXPECT_PATTERN(fd, 1, 54094, 2);

    /* A write after it lands in the zeroed range and nowhere else. */
    CHECK(glfs_zerofill(fd, 0, 32 * KIB) == 0);
    write_pattern(fd, 5000, 100, 3);
    EXPECT_ZEROS(fd, 0, 5000);
    EXPECT_PATTERN(fd, 5000, 100, 3);
    EXPECT_ZEROS(fd, 5100, 32 * KIB - 5100);
    EXPECT_PATTERN(fd, 32 * KIB, 54096 - 1 - 32 * KIB, 2);

    /* 64 MiB over dirty data holds its space afterwards. */
    glfs_fd_t *large = glfs_creat(fs, argv[4], O_RDWR | O_TRUNC, 0644);
    CHECK(large != NULL);
    write_pattern(large, 0, 8 * MIB, 4);
    CHECK(glfs_zerofill(large, 4096, 64 * MIB) == 0);
    CHECK(size_of(large) == 64 * MIB + 4096 && space_of(large) >= 64 * MIB);
    EXPECT_PATTERN(large, 0, 4096, 4);
    EXPECT_ZEROS(large, 4096, 64 * MIB);

    /* Refused, with nothing changed. */
    CHECK(glfs_ftruncate(large, 0, NULL, NULL) == 0);
    write_pattern(large, 0, 64 * KIB, 5);
    FAILS(glfs_zerofill(large, 100, 0), EINVAL);
    FAILS(glfs_zerofill(large, -1, 10), EINVAL);
    FAILS(glfs_zerofill(large, 10, -1), EINVAL);
    double start = now();
    if (huge_errno)
        FAILS(glfs_zerofill(large, INT64_C(1) << 62, 4096), huge_errno);
    else
        CHECK(glfs_zerofill(large, INT64_C(1) << 62, 4096) == 0 && glfs_ftruncate(large, 64 * KIB, NULL, NULL) == 0);
    CHECK(now() - start < 5);
    glfs_fd_t *reader = glfs_open(fs, argv[4], O_RDONLY);
    CHECK(reader != NULL);
    FAILS(glfs_zerofill(reader, 0, 4096), EBADF);
    CHECK(size_of(large) == 64 * KIB);
    EXPECT_PATTERN(large, 0, 64 * KIB, 5);

    /* An append-only fd may still zero anywhere. */
    glfs_fd_t *appender = glfs_open(fs, argv[4], O_RDWR | O_APPEND);
    CHECK(appender != NULL && glfs_zerofill(appender, 4096, 4096) == 0);
    EXPECT_PATTERN(large, 0, 4096, 5);
    EXPECT_ZEROS(large, 4096, 4096);
    EXPECT_PATTERN(large, 8192, 64 * KIB - 8192, 5);
    done();
}
