/* One glfs_zerofill on an fd opened with O_SYNC, over data that has been written; waits for a line on stdin first. */
#include "gf.h"

int main(int argc, char **argv)
{
    char line[16];
    glfs_t *fs = gf_connect(argc, argv);
    glfs_fd_t *fd = glfs_creat(fs, argv[4], O_RDWR | O_EXCL | O_SYNC, 0644);
    CHECK(fd != NULL);
    write_pattern(fd, 0, 64 * KIB, 6);
    puts("ready");
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin) != NULL);
    CHECK(glfs_zerofill(fd, 4096, 8192) == 0);
    EXPECT_PATTERN(fd, 0, 4096, 6);
    EXPECT_ZEROS(fd, 4096, 8192);
    EXPECT_PATTERN(fd, 12288, 64 * KIB - 12288, 6);
    done();
}
