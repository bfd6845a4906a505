/* The wall clock of a process, off by the seconds that the file $ISOLOSS_CHAOS_CLOCK says; other clocks are as they are. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static int (*real)(clockid_t, struct timespec *);

static time_t offset(void) {
    static __thread time_t cached, read_at;
    struct timespec now;
    real(CLOCK_MONOTONIC, &now);
    if (now.tv_sec != read_at) {
        char *name = getenv("ISOLOSS_CHAOS_CLOCK"), text[32];
        FILE *file = name ? fopen(name, "r") : NULL;
        if (file) {
            if (fgets(text, sizeof text, file)) cached = atol(text);
            fclose(file);
        }
        read_at = now.tv_sec;
    }
    return cached;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += offset();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

/* The kernel wakes who waits at a time of the wall clock by its own clock: without this, a wait until now would take the
   hours of the offset, which it does on no machine whose clock has jumped. A time of the monotonic clock is that since
   the machine started. */
int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    static int (*wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!wait) wait = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2"); /* x86: an older one is there, too */
    if (!wait) wait = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec kernels = *until, now;
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    real(CLOCK_REALTIME, &now);
    if (kernels.tv_sec > now.tv_sec / 2) kernels.tv_sec -= offset();
    return wait(cond, mutex, &kernels);
}
