/* Counts the system calls of a running broker by name and by what they are about, and fails chosen ones.

   Preloaded into a broker by `scripted_calls.py`, which shares the file $FAULT_PLAN with it: `struct plan` below. Paths and
   descriptors of files below $FAULT_ROOT are of kind DATA; everything else a process opens (the interpreter's own files) is
   neither counted nor failed. A call fails with `error`, or, where `error` is SHORT, moves about half of its bytes. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

enum call { OPEN, READ, PREAD, WRITE, PWRITE, PWRITEV, FDATASYNC, FSYNC, FALLOCATE, FTRUNCATE, RENAME, UNLINK, MMAP, MSYNC,
    OPENDIR, STAT, FSTAT, STATVFS, FLOCK, ACCEPT, RECV, SEND, SOCKET, SETSOCKOPT, GETPEERNAME, EPOLL_CTL, EPOLL_WAIT,
    EVENTFD, MALLOC, CALLS };
enum kind { DATA, SOCKETS, LOOP, MEMORY, KINDS, NEITHER = KINDS };
enum { SHORT = -1, DESCRIPTORS = 4096, SMALL_BYTES = 4096 };

struct plan {
    int32_t counted; /* a bit for each kind */
    int32_t call, kind, error;
    int64_t place; /* the first one that fails, from 1 */
    int64_t times; /* so many in a row */
    int64_t failed; /* so many did */
    char where[256]; /* what the first of them was about */
    int64_t counts[CALLS][KINDS];
};

static struct plan *plan;
static char root[4096];
static unsigned char kinds[DESCRIPTORS]; /* kind + 1, or 0: not known */

#define NEXT(name) ({ static __typeof__(&name) found; if (!found) found = (__typeof__(&name))dlsym(RTLD_NEXT, #name); found; })

__attribute__((constructor)) static void attach(void) {
    const char *path = getenv("FAULT_PLAN"), *folder = getenv("FAULT_ROOT");
    if (!path || !folder) return;
    snprintf(root, sizeof root, "%s/", folder);
    int fd = NEXT(open)(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *at = NEXT(mmap)(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at != MAP_FAILED) plan = at;
}

static int kind_of_path(const char *path) {
    return plan && path && !strncmp(path, root, strlen(root)) ? DATA : NEITHER;
}

/* The pair of Unix sockets through which the interpreter tells the event loop of signals is neither's to fail: a signal
   that is lost there is lost, and what the loop says of it is not the broker's. */
static int is_of_the_network(int fd) {
    struct sockaddr_storage name;
    socklen_t n = sizeof name;
    return getsockname(fd, (struct sockaddr *)&name, &n) || name.ss_family != AF_UNIX;
}

static int kind_of(int fd) {
    char link[64], target[512];
    if (!plan || fd < 0) return NEITHER;
    if (fd < DESCRIPTORS && kinds[fd]) return kinds[fd] - 1;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, target, sizeof target - 1);
    if (length < 0) return NEITHER;
    target[length] = 0;
    int kind = kind_of_path(target);
    if (!strncmp(target, "socket:", 7) && is_of_the_network(fd)) kind = SOCKETS;
    if (!strncmp(target, "anon_inode:[event", 17)) kind = LOOP; /* eventpoll and eventfd */
    if (fd < DESCRIPTORS) kinds[fd] = kind + 1;
    return kind;
}

/* A number that a new descriptor has taken says nothing any more about what had it before. */
static int fresh(int fd) {
    int before = errno;
    if (fd >= 0 && fd < DESCRIPTORS) kinds[fd] = 0;
    errno = before;
    return fd;
}

static int due(enum call call, int kind, int fd, const char *path) {
    if (!plan || kind >= KINDS || !(plan->counted & 1 << kind)) return 0;
    int64_t at = __atomic_add_fetch(&plan->counts[call][kind], 1, __ATOMIC_SEQ_CST);
    if (plan->call != (int)call || plan->kind != kind || at < plan->place || at >= plan->place + plan->times) return 0;
    if (__atomic_add_fetch(&plan->failed, 1, __ATOMIC_SEQ_CST) == 1) {
        if (path) snprintf(plan->where, sizeof plan->where, "%s", path);
        else if (fd >= 0) {
            char link[64];
            snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
            ssize_t length = readlink(link, plan->where, sizeof plan->where - 1);
            if (length >= 0) plan->where[length] = 0;
        }
    }
    return plan->error;
}

#define FAIL(call, kind, fd, path, failure) do { int code = due(call, kind, fd, path); \
    if (code > 0) { errno = code; return failure; } } while (0)
#define SHORTEN(call, fd, size) do { int code = due(call, kind_of(fd), fd, NULL); \
    if (code > 0) { errno = code; return -1; } if (code == SHORT && (size) > 1) (size) /= 2; } while (0)

/* Files */

#define OPENER(name) int name(const char *path, int flags, ...) { va_list more; va_start(more, flags); \
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0; va_end(more); \
    FAIL(OPEN, kind_of_path(path), -1, path, -1); return fresh(NEXT(name)(path, flags, mode)); }
OPENER(open)
OPENER(open64)
#define OPENER_AT(name) int name(int at, const char *path, int flags, ...) { va_list more; va_start(more, flags); \
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0; va_end(more); \
    FAIL(OPEN, kind_of_path(path), -1, path, -1); return fresh(NEXT(name)(at, path, flags, mode)); }
OPENER_AT(openat)
OPENER_AT(openat64)

ssize_t read(int fd, void *into, size_t size) { SHORTEN(READ, fd, size); return NEXT(read)(fd, into, size); }
ssize_t pread(int fd, void *into, size_t size, off_t at) { SHORTEN(PREAD, fd, size); return NEXT(pread)(fd, into, size, at); }
ssize_t pread64(int fd, void *into, size_t size, off_t at) { SHORTEN(PREAD, fd, size); return NEXT(pread64)(fd, into, size, at); }
ssize_t write(int fd, const void *data, size_t size) { SHORTEN(WRITE, fd, size); return NEXT(write)(fd, data, size); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { SHORTEN(PWRITE, fd, size); return NEXT(pwrite)(fd, data, size, at); }
ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) { SHORTEN(PWRITE, fd, size); return NEXT(pwrite64)(fd, data, size, at); }

/* Of vectors SHORT leaves half of the first part. */
#define VECTOR(name, call, arguments, ...) ssize_t name arguments { int code = due(call, kind_of(fd), fd, NULL); \
    if (code > 0) { errno = code; return -1; } struct iovec part; \
    if (code == SHORT && n && v->iov_len > 1) { part = *v; part.iov_len /= 2; v = &part; n = 1; } \
    return NEXT(name)(__VA_ARGS__); }
VECTOR(writev, WRITE, (int fd, const struct iovec *v, int n), fd, v, n)
VECTOR(pwritev, PWRITEV, (int fd, const struct iovec *v, int n, off_t at), fd, v, n, at)
VECTOR(pwritev64, PWRITEV, (int fd, const struct iovec *v, int n, off_t at), fd, v, n, at)
VECTOR(pwritev2, PWRITEV, (int fd, const struct iovec *v, int n, off_t at, int f), fd, v, n, at, f)
VECTOR(pwritev64v2, PWRITEV, (int fd, const struct iovec *v, int n, off_t at, int f), fd, v, n, at, f)

int fdatasync(int fd) { FAIL(FDATASYNC, kind_of(fd), fd, NULL, -1); return NEXT(fdatasync)(fd); }
int fsync(int fd) { FAIL(FSYNC, kind_of(fd), fd, NULL, -1); return NEXT(fsync)(fd); }
#define FALLOCATOR(name) int name(int fd, off_t at, off_t n) { int code = due(FALLOCATE, kind_of(fd), fd, NULL); \
    return code > 0 ? code : NEXT(name)(fd, at, n); }
FALLOCATOR(posix_fallocate)
FALLOCATOR(posix_fallocate64)
int ftruncate(int fd, off_t n) { FAIL(FTRUNCATE, kind_of(fd), fd, NULL, -1); return NEXT(ftruncate)(fd, n); }
int ftruncate64(int fd, off_t n) { FAIL(FTRUNCATE, kind_of(fd), fd, NULL, -1); return NEXT(ftruncate64)(fd, n); }
int rename(const char *from, const char *to) { FAIL(RENAME, kind_of_path(to), -1, to, -1); return NEXT(rename)(from, to); }
int unlink(const char *path) { FAIL(UNLINK, kind_of_path(path), -1, path, -1); return NEXT(unlink)(path); }
DIR *opendir(const char *path) { FAIL(OPENDIR, kind_of_path(path), -1, path, NULL); return NEXT(opendir)(path); }
int stat(const char *path, struct stat *s) { FAIL(STAT, kind_of_path(path), -1, path, -1); return NEXT(stat)(path, s); }
int stat64(const char *path, struct stat64 *s) { FAIL(STAT, kind_of_path(path), -1, path, -1); return NEXT(stat64)(path, s); }
int fstat(int fd, struct stat *s) { FAIL(FSTAT, kind_of(fd), fd, NULL, -1); return NEXT(fstat)(fd, s); }
int fstat64(int fd, struct stat64 *s) { FAIL(FSTAT, kind_of(fd), fd, NULL, -1); return NEXT(fstat64)(fd, s); }
int statvfs(const char *path, struct statvfs *s) { FAIL(STATVFS, kind_of_path(path), -1, path, -1); return NEXT(statvfs)(path, s); }
int statvfs64(const char *path, struct statvfs64 *s) { FAIL(STATVFS, kind_of_path(path), -1, path, -1); return NEXT(statvfs64)(path, s); }
int flock(int fd, int what) { FAIL(FLOCK, kind_of(fd), fd, NULL, -1); return NEXT(flock)(fd, what); }
int msync(void *at, size_t size, int flags) { FAIL(MSYNC, DATA, -1, NULL, -1); return NEXT(msync)(at, size, flags); }

/* Memory: of files, and for the interpreter. */

#define MAPPER(name) void *name(void *at, size_t size, int access, int flags, int fd, off_t from) { \
    FAIL(MMAP, fd < 0 ? MEMORY : kind_of(fd), fd, NULL, MAP_FAILED); return NEXT(name)(at, size, access, flags, fd, from); }
MAPPER(mmap)
MAPPER(mmap64)

extern void *__libc_malloc(size_t), *__libc_realloc(void *, size_t), *__libc_calloc(size_t, size_t);
#define SCARCE(size) do { if (plan && (size) >= SMALL_BYTES) FAIL(MALLOC, MEMORY, -1, NULL, NULL); } while (0)
void *malloc(size_t size) { SCARCE(size); return __libc_malloc(size); }
void *realloc(void *at, size_t size) { SCARCE(size); return __libc_realloc(at, size); }
void *calloc(size_t count, size_t size) { SCARCE(count * size); return __libc_calloc(count, size); }

/* Sockets and what waits for them. */

int accept(int fd, struct sockaddr *a, socklen_t *n) { FAIL(ACCEPT, SOCKETS, fd, NULL, -1); return fresh(NEXT(accept)(fd, a, n)); }
int accept4(int fd, struct sockaddr *a, socklen_t *n, int f) { FAIL(ACCEPT, SOCKETS, fd, NULL, -1); return fresh(NEXT(accept4)(fd, a, n, f)); }
ssize_t recv(int fd, void *into, size_t size, int f) { SHORTEN(RECV, fd, size); return NEXT(recv)(fd, into, size, f); }
ssize_t send(int fd, const void *data, size_t size, int f) { SHORTEN(SEND, fd, size); return NEXT(send)(fd, data, size, f); }
ssize_t recvfrom(int fd, void *into, size_t size, int f, struct sockaddr *a, socklen_t *n) { SHORTEN(RECV, fd, size); return NEXT(recvfrom)(fd, into, size, f, a, n); }
ssize_t sendto(int fd, const void *data, size_t size, int f, const struct sockaddr *a, socklen_t n) { SHORTEN(SEND, fd, size); return NEXT(sendto)(fd, data, size, f, a, n); }
ssize_t recvmsg(int fd, struct msghdr *m, int f) { FAIL(RECV, kind_of(fd), fd, NULL, -1); return NEXT(recvmsg)(fd, m, f); }
ssize_t sendmsg(int fd, const struct msghdr *m, int f) { FAIL(SEND, kind_of(fd), fd, NULL, -1); return NEXT(sendmsg)(fd, m, f); }
int socket(int domain, int type, int protocol) { FAIL(SOCKET, SOCKETS, -1, NULL, -1); return fresh(NEXT(socket)(domain, type, protocol)); }
int setsockopt(int fd, int level, int name, const void *value, socklen_t n) { FAIL(SETSOCKOPT, kind_of(fd), fd, NULL, -1); return NEXT(setsockopt)(fd, level, name, value, n); }
int getpeername(int fd, struct sockaddr *a, socklen_t *n) { FAIL(GETPEERNAME, kind_of(fd), fd, NULL, -1); return NEXT(getpeername)(fd, a, n); }
int epoll_create1(int flags) { return fresh(NEXT(epoll_create1)(flags)); }
int epoll_ctl(int epoll, int what, int fd, struct epoll_event *event) { FAIL(EPOLL_CTL, LOOP, fd, NULL, -1); return NEXT(epoll_ctl)(epoll, what, fd, event); }
int epoll_wait(int epoll, struct epoll_event *events, int n, int ms) { FAIL(EPOLL_WAIT, LOOP, epoll, NULL, -1); return NEXT(epoll_wait)(epoll, events, n, ms); }
int epoll_pwait(int epoll, struct epoll_event *events, int n, int ms, const sigset_t *set) { FAIL(EPOLL_WAIT, LOOP, epoll, NULL, -1); return NEXT(epoll_pwait)(epoll, events, n, ms, set); }
int eventfd(unsigned count, int flags) { FAIL(EVENTFD, LOOP, -1, NULL, -1); return fresh(NEXT(eventfd)(count, flags)); }
