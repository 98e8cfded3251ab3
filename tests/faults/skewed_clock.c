/* Gives one process a wrong clock: LD_PRELOAD. SKEW_S shifts its wall clock by seconds; SKEW_RATE is the speed of all
   its clocks, 1.4 for seconds that are too short. What it asks the kernel to wait for stays as long as it is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

enum { CLOCKS = 12, NS = 1000000000 };

static int (*real)(clockid_t, struct timespec *);
static struct timespec begun[CLOCKS];
static double rate = 1.0;
static long skew_s;

__attribute__((constructor)) static void begin(void) {
    if (real) return;
    int (*found)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    const char *text = getenv("SKEW_S");
    skew_s = text ? atol(text) : 0;
    text = getenv("SKEW_RATE");
    rate = text ? atof(text) : 1.0;
    for (clockid_t clock = 0; clock < CLOCKS; clock++) found(clock, &begun[clock]);
    real = found;
}

static int measures_work(clockid_t clock) {
    return clock == CLOCK_PROCESS_CPUTIME_ID || clock == CLOCK_THREAD_CPUTIME_ID || clock < 0 || clock >= CLOCKS;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    begin();
    int status = real(clock, now);
    if (status || measures_work(clock)) return status;
    long long passed = (long long)(now->tv_sec - begun[clock].tv_sec) * NS + now->tv_nsec - begun[clock].tv_nsec;
    long long shown = begun[clock].tv_nsec + (long long)(passed * rate);
    now->tv_sec = begun[clock].tv_sec + shown / NS;
    now->tv_nsec = shown % NS;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += skew_s;
    return 0;
}

int gettimeofday(struct timeval *now, void *zone) {
    (void)zone;
    struct timespec shown;
    clock_gettime(CLOCK_REALTIME, &shown);
    now->tv_sec = shown.tv_sec;
    now->tv_usec = shown.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
