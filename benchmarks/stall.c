/* A disk that hangs once: the first fdatasync that finds the file $STALL takes it away and sleeps for the seconds in it.
   Preloaded into a broker by `neighbours.py`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void hang(void) {
    const char *path = getenv("STALL");
    double seconds = 0;
    FILE *file = path && !access(path, F_OK) ? fopen(path, "r") : NULL;
    if (!file) return;
    if (fscanf(file, "%lf", &seconds) != 1) seconds = 0;
    fclose(file);
    unlink(path);
    struct timespec time = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    while (nanosleep(&time, &time) < 0) { }
}

int fdatasync(int fd) {
    static int (*next)(int);
    if (!next) next = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    hang();
    return next(fd);
}
