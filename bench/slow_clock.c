/* Preloaded into a node that valgrind slows down: slows its clock down, too, so that delays of some
 * milliseconds keep their proportion to the work, and no timer fires that would not at full speed.
 *
 * SLOW_CLOCK names a file of two int64: the time on CLOCK_MONOTONIC, in ns, from which on clocks run
 * slower (0: not yet), and how many times. Monotonic clocks and what waits by them are changed; the
 * wall clock is not. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000ll

static const volatile int64_t *shared;

__attribute__((constructor)) static void map_shared(void) {
    const char *path = getenv("SLOW_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *found = mmap(NULL, 2 * sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) shared = found;
    close(file);
}

static int64_t factor(void) { return shared && shared[0] ? shared[1] : 1; }

static int is_monotonic(clockid_t clock) {
    return clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE || clock == CLOCK_MONOTONIC_RAW ||
           clock == CLOCK_BOOTTIME;
}

int clock_gettime(clockid_t clock, struct timespec *to) {
    int failed = (int)syscall(SYS_clock_gettime, clock, to);
    if (failed || factor() == 1 || !is_monotonic(clock)) return failed;
    int64_t now = to->tv_sec * SECOND + to->tv_nsec;
    now = shared[0] + (now - shared[0]) / shared[1];
    to->tv_sec = now / SECOND;
    to->tv_nsec = now % SECOND;
    return 0;
}

/* The moment that a deadline on the slow clock is on the real one. */
static struct timespec real_deadline(const struct timespec *deadline) {
    struct timespec real = *deadline;
    int64_t ns = deadline->tv_sec * SECOND + deadline->tv_nsec;
    if (factor() == 1 || ns < shared[0]) return real;
    ns = shared[0] + (ns - shared[0]) * shared[1];
    real.tv_sec = ns / SECOND;
    real.tv_nsec = ns % SECOND;
    return real;
}

static int real_timeout(int timeout_ms) {
    int64_t real = timeout_ms * factor();
    return timeout_ms <= 0 ? timeout_ms : real > INT32_MAX ? INT32_MAX : (int)real;
}

/* Looked up once: its instructions would be counted as the node's. */
#define NEXT(name)                                                           \
    ({                                                                       \
        static __typeof__(&name) next;                                       \
        if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name);        \
        next;                                                                \
    })

int epoll_wait(int epoll, struct epoll_event *events, int count, int timeout_ms) {
    return NEXT(epoll_wait)(epoll, events, count, real_timeout(timeout_ms));
}

int epoll_pwait(int epoll, struct epoll_event *events, int count, int timeout_ms, const sigset_t *mask) {
    return NEXT(epoll_pwait)(epoll, events, count, real_timeout(timeout_ms), mask);
}

int sem_clockwait(sem_t *semaphore, clockid_t clock, const struct timespec *deadline) {
    struct timespec real = is_monotonic(clock) ? real_deadline(deadline) : *deadline;
    return NEXT(sem_clockwait)(semaphore, clock, &real);
}

/* Python makes its conditions wait by the monotonic clock. */
int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                           const struct timespec *deadline) {
    struct timespec real = real_deadline(deadline);
    return NEXT(pthread_cond_timedwait)(condition, mutex, &real);
}
