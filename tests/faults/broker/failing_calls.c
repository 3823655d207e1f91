/* Makes system calls fail on demand: while the file $FAULTS/<call> exists, <call> fails with the errno written in it; calls
   on sockets do so once, and the file is gone.
   Preloaded into a broker by the tests beside this file. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static int fault(const char *call) {
    const char *folder = getenv("FAULTS");
    char path[4096];
    int code = 0;
    if (!folder || snprintf(path, sizeof path, "%s/%s", folder, call) >= (int)sizeof path) return 0;
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    if (fscanf(file, "%d", &code) != 1) code = EIO;
    fclose(file);
    return code;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FAIL(call) do { int code = fault(call); if (code) { errno = code; return -1; } } while (0)

int fsync(int fd) { FAIL("fsync"); return NEXT(fsync)(fd); }
int fdatasync(int fd) { FAIL("fdatasync"); return NEXT(fdatasync)(fd); }
ssize_t pwritev(int fd, const struct iovec *v, int n, off_t at) { FAIL("pwritev"); return NEXT(pwritev)(fd, v, n, at); }
ssize_t pwritev64(int fd, const struct iovec *v, int n, off_t at) { FAIL("pwritev"); return NEXT(pwritev64)(fd, v, n, at); }
int posix_fallocate(int fd, off_t at, off_t n) { int code = fault("fallocate"); return code ? code : NEXT(posix_fallocate)(fd, at, n); }
int posix_fallocate64(int fd, off_t at, off_t n) { int code = fault("fallocate"); return code ? code : NEXT(posix_fallocate64)(fd, at, n); }
ssize_t pwritev2(int fd, const struct iovec *v, int n, off_t at, int f) { FAIL("pwritev"); return NEXT(pwritev2)(fd, v, n, at, f); }
ssize_t pwritev64v2(int fd, const struct iovec *v, int n, off_t at, int f) { FAIL("pwritev"); return NEXT(pwritev64v2)(fd, v, n, at, f); }

/* Once: whoever takes the file away fails. */
static int fault_once(const char *call) {
    const char *folder = getenv("FAULTS");
    char path[4096];
    int code = fault(call);
    if (!code || snprintf(path, sizeof path, "%s/%s", folder, call) >= (int)sizeof path) return 0;
    return unlink(path) == 0 ? code : 0;
}

#define FAIL_ONCE(call) do { int code = fault_once(call); if (code) { errno = code; return -1; } } while (0)

int accept4(int fd, struct sockaddr *restrict of, socklen_t *restrict size, int flags) {
    FAIL_ONCE("accept");
    return ((int (*)(int, struct sockaddr *, socklen_t *, int))dlsym(RTLD_NEXT, "accept4"))(fd, of, size, flags);
}
ssize_t recv(int fd, void *into, size_t size, int flags) { FAIL_ONCE("recv"); return NEXT(recv)(fd, into, size, flags); }
ssize_t send(int fd, const void *data, size_t size, int flags) { FAIL_ONCE("send"); return NEXT(send)(fd, data, size, flags); }
int setsockopt(int fd, int level, int name, const void *value, socklen_t size) {
    FAIL_ONCE("setsockopt");
    return NEXT(setsockopt)(fd, level, name, value, size);
}
