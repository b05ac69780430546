/* every LIBRARY < names: calls each function with zeroes, each in a process of its own, and prints what came of it. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    char name[128];
    int status;
    void *h = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!h) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    while (fgets(name, sizeof name, stdin)) {
        name[strcspn(name, "\n")] = 0;
        int (*f)(long, long, long, long, long, long, long, long, long, long, long, long) = dlsym(h, name);
        if (!f) {
            printf("%s missing\n", name);
            continue;
        }
        int pipes[2], result = -1;
        if (pipe(pipes))
            return 1;
        fflush(stdout);
        pid_t child = fork();
        if (!child) {
            alarm(3);
            close(2);
            result = f(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
            _exit(write(pipes[1], &result, sizeof result) < 0);
        }
        close(pipes[1]);
        int said = read(pipes[0], &result, sizeof result) == sizeof result;
        close(pipes[0]);
        waitpid(child, &status, 0);
        if (said)
            printf("%s %d\n", name, result);
        else
            printf("%s died %d\n", name, WIFSIGNALED(status) ? WTERMSIG(status) : -1);
    }
    return 0;
}
