/* A tenant that takes a lease on a file, and keeps it whatever the kernel asks.
 * usage: lease FILE [read | try] [fork]; try: and ends; fork: a child keeps it, the parent ends */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int argc, char **argv) {
    signal(SIGIO, SIG_IGN);
    int fd = open(argv[1], O_RDONLY);
    struct stat st;
    if (!fstat(fd, &st))
        setfsuid(st.st_uid); /* a lease is for the owner, whom CAP_SETUID lets it be */
    int type = argc > 2 && !strcmp(argv[2], "read") ? F_RDLCK : F_WRLCK;
    int failed = fcntl(fd, F_SETLEASE, type) ? errno : 0;
    printf("%s\n", failed ? strerror(failed) : "leased");
    fflush(stdout);
    if (failed || (argc > 2 && !strcmp(argv[2], "try")))
        return 1;
    if (!strcmp(argv[argc - 1], "fork") && fork())
        return 0;
    for (;;)
        pause();
}
