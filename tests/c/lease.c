/* glfs_lease by two clients: shared and exclusive leases, a recall, as an upcall event, by what the other one does, which
 * waits meanwhile; and what is no lease. Without write-behind: it sends what it writes without lease ids. */
#include "gf.h"
#include <glusterfs/api/glfs-handles.h>
#include <pthread.h>

static char mine[GLFS_LEASE_ID_SIZE] = "mine", yours[GLFS_LEASE_ID_SIZE] = "yours";
static const char *file;
static volatile int recalled, ended;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void raise_flag(volatile int *flag)
{
    pthread_mutex_lock(&mutex);
    ++*flag;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

static void wait_for(volatile int *flag, int wanted)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 30;
    pthread_mutex_lock(&mutex);
    while (*flag < wanted)
        CHECK(pthread_cond_timedwait(&changed, &mutex, &end) == 0);
    pthread_mutex_unlock(&mutex);
}

static void on_upcall(glfs_upcall_t *up, void *data)
{
    (void)data;
    if (glfs_upcall_get_reason(up) == GLFS_UPCALL_RECALL_LEASE)
        raise_flag(&recalled);
    glfs_free(up);
}

static int lease(glfs_fd_t *fd, int cmd, int type, const char *id)
{
    glfs_lease_t lease = {.cmd = cmd, .lease_type = type};
    memcpy(lease.lease_id, id, GLFS_LEASE_ID_SIZE);
    int result = glfs_lease(fd, &lease, NULL, NULL);
    return result < 0 || cmd != GLFS_GET_LEASE ? result : (int)lease.lease_type;
}

static glfs_t *connect_to(char **argv)
{
    glfs_t *fs = glfs_new(argv[3]);
    CHECK(fs != NULL);
    CHECK(glfs_set_volfile_server(fs, "tcp", argv[1], atoi(argv[2])) == 0);
    CHECK(glfs_set_logging(fs, "/dev/stderr", 4) == 0);
    CHECK(glfs_set_xlator_option(fs, "*-write-behind", "pass-through", "true") == 0);
    CHECK(glfs_init(fs) == 0);
    return fs;
}

static void *other_writes(void *fs)
{
    CHECK(glfs_setfsleaseid(yours) == 0);
    CHECK(glfs_truncate(fs, file, 5) == 0);
    raise_flag(&ended);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    glfs_t *one = connect_to(argv), *two = connect_to(argv);
    file = argv[4];
    CHECK(glfs_upcall_register(one, GLFS_EVENT_RECALL_LEASE, on_upcall, NULL) & GLFS_EVENT_RECALL_LEASE);
    glfs_fd_t *made = glfs_creat(one, argv[4], O_RDWR | O_EXCL, 0644);
    CHECK(made != NULL);
    write_pattern(made, 0, 4096, 1);
    CHECK(glfs_close(made) == 0);

    /* Shared, then exclusive. */
    CHECK(glfs_setfsleaseid(mine) == 0);
    glfs_fd_t *fd = glfs_open(one, argv[4], O_RDWR);
    CHECK(fd != NULL);
    glfs_fd_t *reader = glfs_open(one, argv[4], O_RDONLY);
    CHECK(reader != NULL);
    FAILS(lease(reader, GLFS_SET_LEASE, GLFS_RW_LEASE, mine), EINVAL);
    CHECK(lease(fd, GLFS_GET_LEASE, 0, mine) == 0);
    CHECK(lease(reader, GLFS_SET_LEASE, GLFS_RD_LEASE, mine) == 0);
    CHECK(lease(fd, GLFS_GET_LEASE, 0, mine) == GLFS_RD_LEASE);
    CHECK(lease(reader, GLFS_UNLK_LEASE, GLFS_RD_LEASE, mine) == 0);
    CHECK(lease(fd, GLFS_GET_LEASE, 0, mine) == 0);
    CHECK(lease(fd, GLFS_SET_LEASE, GLFS_RW_LEASE, mine) == 0);
    CHECK(lease(fd, GLFS_GET_LEASE, 0, mine) == GLFS_RW_LEASE);
    FAILS(lease(fd, GLFS_UNLK_LEASE, GLFS_RD_LEASE, mine), EINVAL);
    write_pattern(fd, 0, 4096, 2); /* under the lease */
    EXPECT_PATTERN(fd, 0, 4096, 2);

    /* Another client's lease recalls it and is refused. */
    struct stat st;
    struct glfs_object *object = glfs_h_lookupat(two, NULL, argv[4], &st, 0);
    CHECK(object != NULL);
    glfs_lease_t wanted = {.cmd = GLFS_SET_LEASE, .lease_type = GLFS_RD_LEASE};
    memcpy(wanted.lease_id, yours, GLFS_LEASE_ID_SIZE);
    FAILS(glfs_h_lease(two, object, &wanted), EPERM);
    wait_for(&recalled, 1);
    CHECK(lease(fd, GLFS_UNLK_LEASE, GLFS_RW_LEASE, mine) == 0);

    /* Another client's change waits until it is given back. */
    CHECK(lease(fd, GLFS_SET_LEASE, GLFS_RW_LEASE, mine) == 0);
    int before = recalled;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, other_writes, two) == 0);
    wait_for(&recalled, before + 1);
    CHECK(!ended);
    write_pattern(fd, 0, 4096, 3);
    CHECK(!ended);
    CHECK(lease(fd, GLFS_UNLK_LEASE, GLFS_RW_LEASE, mine) == 0);
    wait_for(&ended, 1);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(glfs_stat(two, argv[4], &st) == 0 && st.st_size == 5);
    done();
}
