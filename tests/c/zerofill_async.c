/* glfs_zerofill_async: many at once on one fd, each with true attributes in its callback, and an error told by callback. */
#include "gf.h"
#include <pthread.h>

#define COUNT 64
#define STRIDE (1 * MIB)
#define LENGTH (300 * KIB + 17)

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int answered, refused, wrong;

static void on_zeroed(glfs_fd_t *fd, ssize_t result, struct glfs_stat *before, struct glfs_stat *after, void *data)
{
    (void)fd;
    int64_t size = *(int64_t *)data;
    pthread_mutex_lock(&mutex);
    answered++;
    if (result != 0)
        refused++;
    else if (!before || !after || before->glfs_st_size != size || after->glfs_st_size != size)
        wrong++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

static void await(int count)
{
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 30;
    pthread_mutex_lock(&mutex);
    while (answered < count)
        CHECK(pthread_cond_timedwait(&changed, &mutex, &limit) == 0);
    pthread_mutex_unlock(&mutex);
}

int main(int argc, char **argv)
{
    glfs_t *fs = gf_connect(argc, argv);
    glfs_fd_t *fd = glfs_creat(fs, argv[4], O_RDWR | O_EXCL, 0644);
    CHECK(fd != NULL);
    int64_t size = COUNT * STRIDE;
    for (int i = 0; i < COUNT; i++)
        write_pattern(fd, i * STRIDE, STRIDE, 9);
    CHECK(glfs_fsync(fd, NULL, NULL) == 0);

    for (int i = 0; i < COUNT; i++)
        CHECK(glfs_zerofill_async(fd, i * STRIDE + 4097, LENGTH, on_zeroed, &size) == 0);
    await(COUNT);
    CHECK(refused == 0 && wrong == 0);
    for (int i = 0; i < COUNT; i++) {
        int64_t start = i * STRIDE;
        EXPECT_PATTERN(fd, start, 4097, 9);
        EXPECT_ZEROS(fd, start + 4097, LENGTH);
        EXPECT_PATTERN(fd, start + 4097 + LENGTH, STRIDE - 4097 - LENGTH, 9);
    }
    CHECK(size_of(fd) == size);

    glfs_fd_t *reader = glfs_open(fs, argv[4], O_RDONLY);
    CHECK(reader != NULL);
    CHECK(glfs_zerofill_async(reader, 0, 4096, on_zeroed, &size) == 0);
    await(COUNT + 1);
    CHECK(refused == 1 && wrong == 0);
    EXPECT_PATTERN(fd, 0, 4097, 9);
    done();
}
