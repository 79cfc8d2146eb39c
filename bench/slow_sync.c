/* Preloaded into a node: every sync takes longer by as many ns as the file $SLOW_SYNC/<process id> says,
 * which holds one int64 and is mapped. It is made with 0. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *longer_ns;

__attribute__((constructor)) static void map_delay(void) {
    const char *folder = getenv("SLOW_SYNC");
    char path[4096];
    if (!folder) return;
    snprintf(path, sizeof path, "%s/%d", folder, (int)getpid());
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, sizeof *longer_ns)) return;
    void *found = mmap(NULL, sizeof *longer_ns, PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) longer_ns = found;
    close(file);
}

int fdatasync(int file) {
    static int (*next)(int);
    if (!next) next = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    int64_t ns = longer_ns ? *longer_ns : 0;
    struct timespec delay = {ns / 1000000000, ns % 1000000000};
    if (ns) nanosleep(&delay, NULL);
    return next(file);
}
