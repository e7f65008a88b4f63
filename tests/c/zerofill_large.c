/* One glfs_zerofill of ARGUMENT bytes on a fresh file. Prints `ready`, waits for a line on stdin, prints the seconds it
 * took, waits for another line, so that the caller can count what happened in between. */
#include "gf.h"

int main(int argc, char **argv)
{
    char line[16];
    glfs_t *fs = gf_connect(argc, argv);
    CHECK(argc == 6);
    int64_t size = atoll(argv[5]);
    glfs_fd_t *fd = glfs_creat(fs, argv[4], O_RDWR | O_EXCL, 0644);
    CHECK(fd != NULL && size_of(fd) == 0);
    puts("ready");
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin) != NULL);
    double start = now();
    CHECK(glfs_zerofill(fd, 0, size) == 0);
    printf("%.6f\n", now() - start);
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin) != NULL);
    CHECK(size_of(fd) == size && space_of(fd) >= size);
    EXPECT_ZEROS(fd, 0, 4 * KIB);
    EXPECT_ZEROS(fd, size / 2 - 5, 4 * KIB);
    EXPECT_ZEROS(fd, size - 4 * KIB, 4 * KIB);
    done();
}
