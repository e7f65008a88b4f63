/* The metadata loop of versus_stock.py on stock libgfapi: FILES files of 4 KiB in FOLDER are created, looked at, listed,
 * read and removed, as the PHASES say. Each phase has a client of its own, so that none is answered from what an earlier
 * one cached, and starts when a line comes in on stdin; it prints its name, the seconds it took and how many operations
 * that were. `create` makes the folder, `unlink` removes it. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glusterfs/api/glfs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BLOCK 4096
#define LISTINGS 10

static char **arguments;
static const char *folder;
static int files;
static char data[BLOCK];

static void fail(const char *what)
{
    fprintf(stderr, "gfmeta: %s: %s\n", what, strerror(errno));
    _exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static glfs_t *client(void)
{
    glfs_t *fs = glfs_new(arguments[3]);
    if (!fs || glfs_set_volfile_server(fs, "tcp", arguments[1], atoi(arguments[2])) ||
        glfs_set_logging(fs, "/dev/stderr", 4) || glfs_init(fs))
        fail("cannot connect");
    return fs;
}

static const char *path(int number)
{
    static char text[64];
    snprintf(text, sizeof text, "%s/file%06d", folder, number);
    return text;
}

static long create_files(glfs_t *fs)
{
    for (int i = 0; i < files; i++) {
        glfs_fd_t *fd = glfs_creat(fs, path(i), O_RDWR | O_EXCL, 0644);
        if (!fd || glfs_write(fd, data, BLOCK, 0) != BLOCK || glfs_close(fd))
            fail("create");
    }
    return files;
}

static long stat_files(glfs_t *fs)
{
    struct stat st;
    for (int i = 0; i < files; i++)
        if (glfs_stat(fs, path(i), &st) || st.st_size != BLOCK)
            fail("stat");
    return files;
}

static long list_files(glfs_t *fs)
{
    struct dirent *entry;
    struct stat st;
    long regular = 0;
    for (int pass = 0; pass < LISTINGS; pass++) {
        glfs_fd_t *fd = glfs_opendir(fs, folder);
        if (!fd)
            fail("opendir");
        errno = 0;
        while ((entry = glfs_readdirplus(fd, &st)))
            regular += S_ISREG(st.st_mode) && st.st_size == BLOCK;
        glfs_closedir(fd);
    }
    if (regular != (long)files * LISTINGS) {
        fprintf(stderr, "gfmeta: readdirplus gave %ld files, not %ld\n", regular, (long)files * LISTINGS);
        _exit(1);
    }
    return regular;
}

static long read_files(glfs_t *fs)
{
    char buffer[BLOCK];
    for (int i = 0; i < files; i++) {
        glfs_fd_t *fd = glfs_open(fs, path(i), O_RDONLY);
        if (!fd || glfs_read(fd, buffer, BLOCK, 0) != BLOCK || memcmp(buffer, data, BLOCK) || glfs_close(fd))
            fail("open and read");
    }
    return files;
}

static long unlink_files(glfs_t *fs)
{
    for (int i = 0; i < files; i++)
        if (glfs_unlink(fs, path(i)))
            fail("unlink");
    return files;
}

static const struct phase {
    const char *name;
    long (*run)(glfs_t *);
} phases[] = {
    {"create", create_files}, {"stat", stat_files},     {"readdirplus", list_files},
    {"open-read", read_files}, {"unlink", unlink_files},
};

/* The client's own volfile, as one line of translator types: both sides of a comparison must run the same. */
static void print_stack(glfs_t *fs)
{
    /* With too small a buffer it says how much is missing; with a larger one than the text it reads past its end.
     * The graph may be up a moment before its text is kept: then nothing is missing yet. */
    int missing = 0;
    for (int tries = 0; tries < 500 && (missing = glfs_get_volfile(fs, NULL, 0)) == 0; tries++)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    char *volfile = missing < 0 ? calloc(1, 1 - missing) : NULL;
    if (!volfile || glfs_get_volfile(fs, volfile, -missing) <= 0)
        fail("glfs_get_volfile");
    printf("stack");
    for (char *line = strtok(volfile, "\n"); line; line = strtok(NULL, "\n")) {
        char type[128];
        if (sscanf(line, " type %127s", type) == 1)
            printf(" %s", type);
    }
    printf("\n");
    free(volfile);
}

static const struct phase *find(const char *name)
{
    for (size_t i = 0; i < sizeof phases / sizeof *phases; i++)
        if (!strcmp(phases[i].name, name))
            return &phases[i];
    fprintf(stderr, "gfmeta: no phase %s\n", name);
    _exit(2);
}

int main(int argc, char **argv)
{
    char line[16];
    if (argc < 7 || (files = atoi(argv[4])) < 1) {
        fprintf(stderr, "usage: gfmeta HOST PORT VOLUME FILES FOLDER PHASE...\n");
        return 2;
    }
    arguments = argv;
    folder = argv[5];
    memset(data, 'x', BLOCK);
    glfs_t *fs = client();
    print_stack(fs);
    for (int i = 6; i < argc; i++) {
        const struct phase *phase = find(argv[i]);
        if (phase->run == create_files && glfs_mkdir(fs, folder, 0755))
            fail("mkdir");
        glfs_t *own = client();
        fflush(stdout);
        if (!fgets(line, sizeof line, stdin))
            fail("stdin");
        double start = now();
        long count = phase->run(own);
        printf("%s %.6f %ld\n", phase->name, now() - start, count);
        if (phase->run == unlink_files && glfs_rmdir(fs, folder))
            fail("rmdir");
    }
    puts("done");
    fflush(stdout);
    /* glfs_fini would hold each of the clients ten seconds. */
    _exit(0);
}
