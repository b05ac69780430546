/* Prints the part of the time for which a thread that waits for a lock keeps its processor busy, in per cent. */
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "process/state.h"

static struct gh_lock lock;

static double seconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void *wait_for_it(void *got) {
    double since = seconds(CLOCK_MONOTONIC), busy = seconds(CLOCK_THREAD_CPUTIME_ID);
    if (gh_lock(&lock))
        *(double *)got = (seconds(CLOCK_THREAD_CPUTIME_ID) - busy) / (seconds(CLOCK_MONOTONIC) - since);
    return NULL;
}

int main(void) {
    pthread_t thread;
    double part = 9;
    if (!gh_lock(&lock) || pthread_create(&thread, NULL, wait_for_it, &part))
        return 1;
    nanosleep(&(struct timespec){0, 500000000}, NULL);
    gh_unlock(&lock);
    pthread_join(thread, NULL);
    printf("%.0f\n", part * 100);
    return 0;
}
