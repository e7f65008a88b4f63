/* What the test programs share: connecting to a volume, checks that say where they failed, patterns and their comparison.
 *
 * Every program is called as PROGRAM HOST PORT VOLUME FILE [ARGUMENTS] and works on FILE, which it makes. It ends with
 * _exit, because glfs_fini keeps a process for ten seconds. */
#ifndef GF_H
#define GF_H

#include <errno.h>
#include <fcntl.h>
#include <glusterfs/api/glfs.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define KIB 1024L
#define MIB (1024L * 1024)

#define CHECK(condition)                                                                               \
    do {                                                                                               \
        errno = 0;                                                                                     \
        if (!(condition)) {                                                                            \
            fprintf(stderr, "%s:%d: not so: %s (errno %d %s)\n", __FILE__, __LINE__, #condition, errno, \
                    strerror(errno));                                                                  \
            _exit(1);                                                                                  \
        }                                                                                              \
    } while (0)

#define FAILS(call, expected)                                                                          \
    do {                                                                                               \
        errno = 0;                                                                                     \
        long fails_result = (long)(call);                                                              \
        if (fails_result != -1 || errno != (expected)) {                                               \
            fprintf(stderr, "%s:%d: %s gave %ld with errno %d %s, not -1 with %s\n", __FILE__, __LINE__, \
                    #call, fails_result, errno, strerror(errno), strerror(expected));                  \
            _exit(1);                                                                                  \
        }                                                                                              \
    } while (0)

__attribute__((unused)) static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

__attribute__((unused)) static glfs_t *gf_connect(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "usage: %s HOST PORT VOLUME FILE [ARGUMENTS]\n", argv[0]);
        _exit(2);
    }
    glfs_t *fs = glfs_new(argv[3]);
    CHECK(fs != NULL);
    CHECK(glfs_set_volfile_server(fs, "tcp", argv[1], atoi(argv[2])) == 0);
    CHECK(glfs_set_logging(fs, "/dev/stderr", 4) == 0);
    CHECK(glfs_init(fs) == 0);
    return fs;
}

/* The byte at `offset` of a pattern: never 0, different from its neighbours and from other seeds. */
__attribute__((unused)) static unsigned char pattern(int64_t offset, unsigned seed)
{
    return 1 + (offset * 131 + (offset >> 9) * 7 + seed * 57) % 255;
}

__attribute__((unused)) static void write_pattern(glfs_fd_t *fd, int64_t offset, int64_t length, unsigned seed)
{
    unsigned char *buffer = malloc(length);
    CHECK(buffer != NULL);
    for (int64_t i = 0; i < length; i++)
        buffer[i] = pattern(offset + i, seed);
    CHECK(glfs_pwrite(fd, buffer, length, offset, 0, NULL, NULL) == length);
    free(buffer);
}

/* Read [offset, offset+length) whole; ends the program at a short file. */
__attribute__((unused)) static unsigned char *read_all(glfs_fd_t *fd, int64_t offset, int64_t length)
{
    unsigned char *buffer = malloc(length);
    CHECK(buffer != NULL);
    for (int64_t done = 0; done < length;) {
        ssize_t count = glfs_pread(fd, buffer + done, length - done, offset + done, 0, NULL);
        CHECK(count > 0);
        done += count;
    }
    return buffer;
}

#define EXPECT_ZEROS(fd, offset, length) expect(__LINE__, fd, offset, length, -1)
#define EXPECT_PATTERN(fd, offset, length, seed) expect(__LINE__, fd, offset, length, seed)

__attribute__((unused)) static void expect(int line, glfs_fd_t *fd, int64_t offset, int64_t length, int seed)
{
    if (length == 0)
        return;
    unsigned char *buffer = read_all(fd, offset, length);
    for (int64_t i = 0; i < length; i++) {
        unsigned char wanted = seed < 0 ? 0 : pattern(offset + i, seed);
        if (buffer[i] != wanted) {
            fprintf(stderr, "line %d: byte %" PRId64 " is %d, not %d\n", line, offset + i, buffer[i], wanted);
            _exit(1);
        }
    }
    free(buffer);
}

__attribute__((unused)) static int64_t size_of(glfs_fd_t *fd)
{
    struct stat st;
    CHECK(glfs_fstat(fd, &st) == 0);
    return st.st_size;
}

/* Space the file holds, in bytes. */
__attribute__((unused)) static int64_t space_of(glfs_fd_t *fd)
{
    struct stat st;
    CHECK(glfs_fstat(fd, &st) == 0);
    return (int64_t)st.st_blocks * 512;
}

__attribute__((unused)) static void done(void)
{
    puts("ok");
    fflush(stdout);
    _exit(0);
}

#endif
