/* glfs_lseek with SEEK_DATA and SEEK_HOLE: every extent of a sparse file found, ENXIO past the end. */
#include "gf.h"

static const int64_t starts[] = {0, 1 * MIB, 5 * MIB, 64 * MIB, 1024 * MIB};
#define EXTENTS ((int)(sizeof starts / sizeof *starts))
#define LENGTH (256 * KIB)
#define SIZE (1100 * MIB)

int main(int argc, char **argv)
{
    glfs_t *fs = gf_connect(argc, argv);
    glfs_fd_t *fd = glfs_creat(fs, argv[4], O_RDWR | O_EXCL, 0644);
    CHECK(fd != NULL);
    CHECK(glfs_ftruncate(fd, SIZE, NULL, NULL) == 0);
    FAILS(glfs_lseek(fd, 0, SEEK_DATA), ENXIO);
    CHECK(glfs_lseek(fd, 0, SEEK_HOLE) == 0);

    for (int i = 0; i < EXTENTS; i++)
        write_pattern(fd, starts[i], LENGTH, i);
    CHECK(glfs_fsync(fd, NULL, NULL) == 0);
    int64_t at = 0;
    for (int i = 0; i < EXTENTS; i++) {
        CHECK((at = glfs_lseek(fd, at, SEEK_DATA)) == starts[i]);
        CHECK(glfs_lseek(fd, at + 5, SEEK_DATA) == at + 5);
        CHECK((at = glfs_lseek(fd, at, SEEK_HOLE)) == starts[i] + LENGTH);
        CHECK(glfs_lseek(fd, at + 7, SEEK_HOLE) == at + 7);
    }
    FAILS(glfs_lseek(fd, at, SEEK_DATA), ENXIO);
    FAILS(glfs_lseek(fd, SIZE, SEEK_DATA), ENXIO);
    FAILS(glfs_lseek(fd, SIZE, SEEK_HOLE), ENXIO);
    FAILS(glfs_lseek(fd, SIZE + 1, SEEK_HOLE), ENXIO);

    /* Data up to the end: the end counts as a hole. */
    CHECK(glfs_ftruncate(fd, starts[1] + LENGTH, NULL, NULL) == 0);
    CHECK(glfs_lseek(fd, starts[1], SEEK_HOLE) == starts[1] + LENGTH);
    for (int i = 0; i < 2; i++)
        EXPECT_PATTERN(fd, starts[i], LENGTH, i);

    /* The ordinary ones. */
    CHECK(glfs_lseek(fd, 100, SEEK_SET) == 100);
    CHECK(glfs_lseek(fd, 10, SEEK_CUR) == 110);
    CHECK(glfs_lseek(fd, -10, SEEK_END) == starts[1] + LENGTH - 10);
    done();
}
