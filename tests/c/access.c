/* What a user who is not root may do, fop by fop: lines of NAME and errno (0 when it worked), for a comparison of bricks.
 * ARGUMENTS: uid, gid. Root has prepared the volume; FILE is not used. */
#include "gf.h"

static glfs_t *fs;

static void tell(const char *name, long result)
{
    printf("%s %d\n", name, result == -1 ? errno : 0);
}

static void open_close(const char *name, const char *path, int flags)
{
    errno = 0;
    glfs_fd_t *fd = glfs_open(fs, path, flags);
    char byte;
    long result = fd ? 0 : -1;
    /* A client may put the opening off until it is used. */
    if (fd && (flags & O_ACCMODE) == O_RDONLY)
        result = glfs_pread(fd, &byte, 1, 0, 0, NULL) < 0 ? -1 : 0;
    else if (fd && !(flags & O_TRUNC))
        result = glfs_pwrite(fd, "y", 1, 0, 0, NULL, NULL) < 0 || glfs_fsync(fd, NULL, NULL) < 0 ? -1 : 0;
    int code = errno;
    if (fd)
        glfs_close(fd);
    errno = code;
    tell(name, result);
}

static void make(const char *name, const char *path)
{
    errno = 0;
    glfs_fd_t *fd = glfs_creat(fs, path, O_RDWR | O_EXCL, 0644);
    tell(name, fd ? 0 : -1);
    if (fd)
        glfs_close(fd);
}

int main(int argc, char **argv)
{
    fs = gf_connect(argc, argv);
    CHECK(argc >= 7);
    CHECK(glfs_setfsuid(atoi(argv[5])) == 0 && glfs_setfsgid(atoi(argv[6])) == 0);
    struct stat st;
    char value[4096];
    struct timespec times[2] = {{5, 0}, {6, 0}};

    open_close("open-0640-read", "open/r640", O_RDONLY);
    open_close("open-0640-write", "open/r640", O_WRONLY);
    open_close("open-0640-both", "open/r640", O_RDWR);
    open_close("open-0640-trunc", "open/r640", O_RDONLY | O_TRUNC);
    open_close("open-0644-read", "open/r644", O_RDONLY);
    open_close("open-0644-write", "open/r644", O_WRONLY);
    open_close("open-0666-both", "open/r666", O_RDWR);
    open_close("open-mine-0400-read", "open/mine400", O_RDONLY);
    open_close("open-mine-0400-write", "open/mine400", O_WRONLY);
    open_close("open-mine-0200-read", "open/mine200", O_RDONLY);
    open_close("open-group-0060", "open/group060", O_RDWR);
    open_close("open-acl-r", "open/aclr", O_RDONLY);
    open_close("open-acl-r-write", "open/aclr", O_WRONLY);
    open_close("open-acl-masked", "open/aclmasked", O_WRONLY);
    open_close("open-acl-denied", "open/acldenied", O_RDONLY);
    open_close("open-in-closed", "closed/in", O_RDONLY);
    tell("stat-0640", glfs_stat(fs, "open/r640", &st));
    tell("stat-in-closed", glfs_stat(fs, "closed/in", &st));
    tell("access-0640-r", glfs_access(fs, "open/r640", R_OK));
    tell("access-0644-r", glfs_access(fs, "open/r644", R_OK));
    tell("access-0644-w", glfs_access(fs, "open/r644", W_OK));
    tell("opendir-open", glfs_opendir(fs, "open") ? 0 : -1);
    errno = 0;
    tell("opendir-closed", glfs_opendir(fs, "closed") ? 0 : -1);
    tell("truncate-0640", glfs_truncate(fs, "open/r640", 0));
    tell("truncate-0666", glfs_truncate(fs, "open/r666", 10));
    tell("chmod-roots", glfs_chmod(fs, "open/r666", 0777));
    tell("chmod-mine", glfs_chmod(fs, "open/mine", 0600));
    tell("chown-roots", glfs_chown(fs, "open/r666", atoi(argv[5]), atoi(argv[6])));
    tell("chown-mine-away", glfs_chown(fs, "open/mine", 0, -1));
    tell("chgrp-mine-to-root", glfs_chown(fs, "open/mine", atoi(argv[5]), 0));
    tell("chgrp-mine-to-mine", glfs_chown(fs, "open/mine", atoi(argv[5]), atoi(argv[6])));
    tell("utimes-roots", glfs_utimens(fs, "open/r644", times));
    tell("utimes-mine", glfs_utimens(fs, "open/mine", times));
    tell("setxattr-0640", glfs_setxattr(fs, "open/r640", "user.k", "v", 1, 0));
    tell("setxattr-0666", glfs_setxattr(fs, "open/r666", "user.k", "v", 1, 0));
    tell("getxattr-0640", glfs_getxattr(fs, "open/r640", "user.there", value, sizeof value));
    tell("getxattr-0644", glfs_getxattr(fs, "open/r644", "user.there", value, sizeof value));
    tell("removexattr-0644", glfs_removexattr(fs, "open/r644", "user.there"));
    tell("removexattr-0666", glfs_removexattr(fs, "open/r666", "user.k"));
    tell("setacl-roots", glfs_setxattr(fs, "open/r666", "glusterfs.posix.acl", "u::rw-,g::rw-,o::rwx", 20, 0));
    tell("setacl-mine", glfs_setxattr(fs, "open/mine", "glusterfs.posix.acl", "u::rw-,g::r--,o::---", 20, 0));
    tell("getacl-roots", glfs_getxattr(fs, "open/r640", "glusterfs.posix.acl", value, sizeof value));
    make("create-in-roots", "open/new");
    make("create-in-closed", "closed/new");
    make("create-in-shared", "shared/new");
    tell("mkdir-in-roots", glfs_mkdir(fs, "open/newdir", 0755));
    tell("mkdir-in-shared", glfs_mkdir(fs, "shared/newdir", 0755));
    tell("mknod-in-roots", glfs_mknod(fs, "open/newnod", S_IFREG | 0644, 0));
    tell("symlink-in-roots", glfs_symlink(fs, "x", "open/newlink"));
    tell("symlink-in-shared", glfs_symlink(fs, "x", "shared/newlink"));
    tell("link-in-roots", glfs_link(fs, "open/r666", "open/newhard"));
    tell("link-in-shared", glfs_link(fs, "open/r666", "shared/newhard"));
    tell("unlink-in-roots", glfs_unlink(fs, "open/r666"));
    tell("rmdir-in-roots", glfs_rmdir(fs, "open/sub"));
    tell("rename-in-roots", glfs_rename(fs, "open/r666", "open/renamed"));
    tell("rename-out-of-roots", glfs_rename(fs, "open/r666", "shared/renamed"));
    tell("rename-into-roots", glfs_rename(fs, "shared/new", "open/renamed"));
    tell("sticky-unlink-other", glfs_unlink(fs, "tmp/other"));
    tell("sticky-rename-other", glfs_rename(fs, "tmp/other", "tmp/x"));
    tell("sticky-replace-other", glfs_rename(fs, "tmp/mine", "tmp/other"));
    tell("sticky-rmdir-other", glfs_rmdir(fs, "tmp/otherdir"));
    tell("sticky-rename-mine", glfs_rename(fs, "tmp/mine", "tmp/x"));
    tell("sticky-unlink-mine", glfs_unlink(fs, "tmp/x"));
    fflush(stdout);
    _exit(0);
}
