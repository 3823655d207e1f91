/* Makes system calls fail on demand: while the file $FAULTS/<call> exists, <call> fails with the errno written in it.
   Preloaded into a broker by the tests beside this file. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <sys/uio.h>

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
