/* Preloaded into a node: notes when it reads, writes and syncs, in the file $TRACE_CALLS/<process id>.
 *
 * A note is begin and end on CLOCK_MONOTONIC, in ns; what; descriptor; result. The file is mapped, so that a
 * note costs two readings of the clock and no system call. It begins with the number of notes; those beyond
 * NOTES_MAX are dropped. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define NOTES_MAX (1 << 20)

enum what { READ = 1, SEND, WRITE_FILE, SYNC };

struct note {
    int64_t begin_ns, end_ns;
    int32_t what, descriptor;
    int64_t result;
};

static struct {
    int64_t used, unused[3];
    struct note notes[NOTES_MAX];
} *book;

__attribute__((constructor)) static void open_book(void) {
    const char *folder = getenv("TRACE_CALLS");
    char path[4096];
    if (!folder) return;
    snprintf(path, sizeof path, "%s/%d", folder, (int)getpid());
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, sizeof *book)) return;
    void *found = mmap(NULL, sizeof *book, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) book = found;
    close(file);
}

static int64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static int64_t note(enum what what, int descriptor, int64_t begin_ns, int64_t result) {
    if (book) {
        int64_t at = __atomic_fetch_add(&book->used, 1, __ATOMIC_RELAXED);
        if (at < NOTES_MAX)
            book->notes[at] = (struct note){begin_ns, clock_ns(), what, descriptor, result};
    }
    return result;
}

/* The function behind ours; looked up once. */
#define NEXT(name)                                                                                \
    static __typeof__(&name) next;                                                                \
    if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name);                                 \
    int64_t begin_ns = clock_ns()

ssize_t read(int file, void *to, size_t count) {
    NEXT(read);
    return note(READ, file, begin_ns, next(file, to, count));
}

ssize_t write(int file, const void *from, size_t count) {
    NEXT(write);
    return note(SEND, file, begin_ns, next(file, from, count));
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    NEXT(writev);
    return note(SEND, file, begin_ns, next(file, parts, count));
}

ssize_t sendmsg(int socket, const struct msghdr *message, int flags) {
    NEXT(sendmsg);
    return note(SEND, socket, begin_ns, next(socket, message, flags));
}

ssize_t pwrite64(int file, const void *from, size_t count, off64_t at) {
    NEXT(pwrite64);
    return note(WRITE_FILE, file, begin_ns, next(file, from, count, at));
}

ssize_t pwritev64v2(int file, const struct iovec *parts, int count, off64_t at, int flags) {
    NEXT(pwritev64v2);
    return note(WRITE_FILE, file, begin_ns, next(file, parts, count, at, flags));
}

int fdatasync(int file) {
    NEXT(fdatasync);
    return (int)note(SYNC, file, begin_ns, next(file));
}
