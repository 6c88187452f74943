/* Changes the ground under a trainer while it trains: its wall clock goes wrong, and its disk takes no change.
 *
 * It is loaded before libc (LD_PRELOAD) and looks, at each call, at a file that it shares with the test, as
 * tests/e2e/shim.py lays it out. Calls that change nothing on the disk are left alone, so that reading goes on.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct ground {
    volatile int64_t clock_ns;   /* added to the wall clock */
    volatile int32_t error;      /* of what would change the disk; 0 for a disk that works */
    volatile uint32_t per_mille; /* how many of these calls fail */
    volatile uint64_t failures;  /* how many have */
    char below[4072];            /* the folder that lies on that disk */
};

static struct ground still;
static struct ground *ground = &still;

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("MIDRUN_TEST_GROUND");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *shared = mmap(NULL, sizeof *ground, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared != MAP_FAILED)
        ground = shared;
    close(fd);
}

/* ---- the disk */

static int is_below(const char *path) {
    size_t length = strlen(ground->below);
    return length && strncmp(path, ground->below, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

static int strikes(void) {
    static _Thread_local uint32_t state;
    if (!state)
        state = (uint32_t)(uintptr_t)&state | 1;
    state ^= state << 13, state ^= state >> 17, state ^= state << 5; /* Marsaglia's xorshift */
    if (state % 1000 >= ground->per_mille)
        return 0;
    __atomic_add_fetch(&ground->failures, 1, __ATOMIC_RELAXED);
    errno = ground->error;
    return 1;
}

static int fails_fd(int fd) {
    char name[64], path[4096];
    if (!ground->error)
        return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(name, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = '\0';
    return is_below(path) && strikes();
}

static int fails_at(int folder, const char *path) {
    char name[64], whole[8192];
    if (!ground->error)
        return 0;
    if (path[0] == '/')
        return is_below(path) && strikes();
    snprintf(name, sizeof name, folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", folder);
    ssize_t length = readlink(name, whole, 4096);
    if (length < 0)
        return 0;
    snprintf(whole + length, sizeof whole - (size_t)length, "/%s", path);
    return is_below(whole) && strikes();
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define CHANGES(type, name, parameters, arguments, fails) \
    type name parameters {                                \
        static __typeof__(&name) next;                    \
        if (!next)                                        \
            next = NEXT(name);                            \
        return fails ? -1 : next arguments;               \
    }

CHANGES(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size), fails_fd(fd))
CHANGES(ssize_t, writev, (int fd, const struct iovec *data, int count), (fd, data, count), fails_fd(fd))
CHANGES(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at), fails_fd(fd))
CHANGES(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at), fails_fd(fd))
CHANGES(int, fsync, (int fd), (fd), fails_fd(fd))
CHANGES(int, fdatasync, (int fd), (fd), fails_fd(fd))
CHANGES(int, ftruncate, (int fd, off_t size), (fd, size), fails_fd(fd))
CHANGES(int, ftruncate64, (int fd, off64_t size), (fd, size), fails_fd(fd))
CHANGES(int, rename, (const char *from, const char *to), (from, to), fails_at(AT_FDCWD, to))
CHANGES(int, unlink, (const char *path), (path), fails_at(AT_FDCWD, path))
CHANGES(int, unlinkat, (int folder, const char *path, int flags), (folder, path, flags), fails_at(folder, path))
CHANGES(int, rmdir, (const char *path), (path), fails_at(AT_FDCWD, path))
CHANGES(int, mkdir, (const char *path, mode_t mode), (path, mode), fails_at(AT_FDCWD, path))
CHANGES(int, mknod, (const char *path, mode_t mode, dev_t device), (path, mode, device), fails_at(AT_FDCWD, path))
CHANGES(int, link, (const char *from, const char *to), (from, to), fails_at(AT_FDCWD, to))
CHANGES(int, symlink, (const char *to, const char *path), (to, path), fails_at(AT_FDCWD, path))

#define OPENS(name, parameters, first, folder)                                       \
    int name parameters {                                                            \
        static __typeof__(&name) next;                                               \
        if (!next)                                                                   \
            next = NEXT(name);                                                       \
        mode_t mode = 0;                                                             \
        if (flags & (O_CREAT | __O_TMPFILE)) {                                       \
            va_list more;                                                            \
            va_start(more, flags);                                                   \
            mode = va_arg(more, mode_t);                                             \
            va_end(more);                                                            \
        }                                                                            \
        int is_change = (flags & O_ACCMODE) != O_RDONLY || (flags & O_CREAT);        \
        return is_change && fails_at(folder, path) ? -1 : next(first flags, mode);   \
    }

#define PATH path,
#define FOLDER folder, path,
OPENS(open, (const char *path, int flags, ...), PATH, AT_FDCWD)
OPENS(open64, (const char *path, int flags, ...), PATH, AT_FDCWD)
OPENS(openat, (int folder, const char *path, int flags, ...), FOLDER, folder)
OPENS(openat64, (int folder, const char *path, int flags, ...), FOLDER, folder)

/* ---- the clock */

int clock_gettime(clockid_t clock, struct timespec *now) {
    static __typeof__(&clock_gettime) next;
    if (!next)
        next = NEXT(clock_gettime);
    int code = next(clock, now);
    if (code == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) && ground->clock_ns) {
        int64_t moved = now->tv_sec * 1000000000LL + now->tv_nsec + ground->clock_ns;
        now->tv_sec = moved / 1000000000;
        now->tv_nsec = moved % 1000000000;
    }
    return code;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now)
        *now = precise.tv_sec;
    return precise.tv_sec;
}
