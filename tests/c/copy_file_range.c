/* glfs_copy_file_range: the brick copies between two files and within one, data and offsets right, the rest untouched.
 *
 * Every copy here starts at offset 0 of its source and is one call: the stock 10.3 client puts 0 on the wire as the source
 * offset whatever it is told. Sizes come from the reply, because its md-cache keeps the old one for a second. */
#include "gf.h"

static void copy(glfs_fd_t *in, glfs_fd_t *out, int64_t to, int64_t length, int64_t size_before)
{
    off64_t off_in = 0, off_out = to;
    struct glfs_stat st, before, after;
    int64_t size_after = to + length > size_before ? to + length : size_before;
    CHECK(glfs_copy_file_range(in, &off_in, out, &off_out, length, 0, &st, &before, &after) == length);
    CHECK(off_in == length && off_out == to + length);
    CHECK(before.glfs_st_size == size_before && after.glfs_st_size == size_after);
    CHECK(st.glfs_st_size == (in == out ? size_after : 2 * MIB)); /* the source's */
}

static void expect_copy(glfs_fd_t *fd, int64_t at, int64_t length)
{
    unsigned char *copied = read_all(fd, at, length);
    for (int64_t i = 0; i < length; i++)
        CHECK(copied[i] == pattern(i, 1));
    free(copied);
}

int main(int argc, char **argv)
{
    char name[512];
    glfs_t *fs = gf_connect(argc, argv);
    snprintf(name, sizeof name, "%s.source", argv[4]);
    glfs_fd_t *in = glfs_creat(fs, name, O_RDWR | O_EXCL, 0644);
    glfs_fd_t *out = glfs_creat(fs, argv[4], O_RDWR | O_EXCL, 0644);
    CHECK(in != NULL && out != NULL);
    write_pattern(in, 0, 2 * MIB, 1);
    write_pattern(out, 0, 1 * MIB, 2);
    CHECK(glfs_fsync(in, NULL, NULL) == 0 && glfs_fsync(out, NULL, NULL) == 0);

    copy(in, out, 5678, 300000, 1 * MIB);
    EXPECT_PATTERN(out, 0, 5678, 2);
    expect_copy(out, 5678, 300000);
    EXPECT_PATTERN(out, 305678, 1 * MIB - 305678, 2);
    EXPECT_PATTERN(in, 0, 2 * MIB, 1);

    /* Past the end of the destination: it grows. */
    copy(in, out, 1 * MIB - 100, 2 * MIB, 1 * MIB);
    expect_copy(out, 1 * MIB - 100, 2 * MIB);
    EXPECT_PATTERN(out, 305678, 1 * MIB - 100 - 305678, 2);

    /* Within one file, ranges apart; the gap before the destination reads as zeros. */
    copy(in, out, 0, 2 * MIB, 3 * MIB - 100);
    copy(out, out, 4 * MIB, 1 * MIB, 3 * MIB - 100);
    EXPECT_PATTERN(out, 0, 2 * MIB, 1);
    EXPECT_ZEROS(out, 3 * MIB - 100, 1 * MIB + 100);
    expect_copy(out, 4 * MIB, 1 * MIB);

    /* From an empty source there is nothing to copy. */
    CHECK(glfs_ftruncate(in, 0, NULL, NULL) == 0);
    off64_t off_in = 0, off_out = 0;
    struct glfs_stat st, before, after;
    CHECK(glfs_copy_file_range(in, &off_in, out, &off_out, 4096, 0, &st, &before, &after) == 0);
    EXPECT_PATTERN(out, 0, 4096, 1);
    CHECK(glfs_unlink(fs, name) == 0);
    done();
}
