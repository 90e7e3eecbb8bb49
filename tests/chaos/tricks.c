/* Laid under a process by LD_PRELOAD: its wall clock runs beside the machine's, its disk takes its time.
 *
 * The file that CHAOS_TRICKS names holds two numbers of 64 bits that the chaos run changes while the process lives: by
 * how many nanoseconds the clock is off, and how many nanoseconds each flush of a file takes longer.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static const volatile int64_t *tricks;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CHAOS_TRICKS");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *found = mmap(NULL, 16, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (found != MAP_FAILED)
        tricks = found;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (failed || !tricks || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
        return failed;
    int64_t told = now->tv_sec * SECOND + now->tv_nsec + tricks[0];
    now->tv_sec = told / SECOND;
    now->tv_nsec = told % SECOND;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec told;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &told))
        return -1;
    now->tv_sec = told.tv_sec;
    now->tv_usec = told.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *place) {
    struct timespec told;
    clock_gettime(CLOCK_REALTIME, &told);
    if (place)
        *place = told.tv_sec;
    return told.tv_sec;
}

static void take_time(void) {
    int64_t longer = tricks ? tricks[1] : 0;
    struct timespec pause = {longer / SECOND, longer % SECOND};
    if (longer > 0)
        nanosleep(&pause, NULL);
}

int fsync(int file) {
    take_time();
    return (int)syscall(SYS_fsync, file);
}

int fdatasync(int file) {
    take_time();
    return (int)syscall(SYS_fdatasync, file);
}
