/* The hook that asks for the driver's memory limits of a container: gpu-hook-boundary set|clear STATE_DIR KEY, with the
 * container's state on standard input (OCI runtime-spec, runtime.md). The launcher calls it with `end` (end_limits.h).
 *
 * The agent's server, which holds NVML open, does the work (oci_hook/boundary/server.py; protocol.py has the packets). If
 * it does not answer with success in time, the helper does, `oci-gpu-hook boundary`: it starts NVML itself, and decides
 * what a failure means for the container.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define SOCKET "boundary.sock" /* core/layout.py BOUNDARY_SOCKET */
#define RECORDS "boundary"     /* core/layout.py BOUNDARY_DIR */
#define HELPER "oci-gpu-hook"  /* lies beside this program */
#define SUCCESS "{\"ok\":true" /* protocol.py OK */
#define SECONDS 3              /* protocol.py SECONDS */
#define HUNG "hung"            /* boundary/limit_records.py HUNG */
#define HUNG_SECONDS 60
#define MAX_STATE (1 << 24) /* 1 Mi characters of annotations (core/collect.py), at most 6 bytes each */
#define MAX_PID (1 << 22)   /* oci/state.py PID_MAX */
#define KEY_DIGITS 32       /* ledger/store.py valid_key */

extern char **environ;

__attribute__((noreturn)) static void refuse(const char *text) {
    dprintf(STDERR_FILENO, "%s\n", text);
    _exit(1);
}

/* ---- the state's pid ------------------------------------------------------------------------------------------- */

struct scan {
    const char *at, *end;
};

static void skip_space(struct scan *s) {
    while (s->at < s->end && strchr(" \t\r\n", *s->at) && *s->at)
        s->at++;
}

/* At the quote that begins a string: moves behind the one that ends it. False where none does. */
static bool skip_string(struct scan *s) {
    for (s->at++; s->at < s->end; s->at++) {
        if (*s->at == '"') {
            s->at++;
            return true;
        }
        if (*s->at == '\\')
            s->at++;
    }
    return false;
}

/* The member "pid" of the document's outermost object; 0 where there is none. An annotation of that name is deeper. */
static long find_pid(const char *text, size_t size) {
    struct scan s = {text, text + size};
    int depth = 0;
    while (s.at < s.end) {
        if (*s.at == '"') {
            const char *from = s.at;
            if (!skip_string(&s))
                return 0;
            bool named = depth == 1 && s.at - from == 5 && !memcmp(from, "\"pid\"", 5);
            skip_space(&s);
            if (named && s.at < s.end && *s.at == ':') {
                s.at++;
                skip_space(&s);
                long pid = 0;
                for (; s.at < s.end && *s.at >= '0' && *s.at <= '9' && pid <= MAX_PID; s.at++)
                    pid = pid * 10 + (*s.at - '0');
                return pid <= MAX_PID ? pid : 0;
            }
            continue;
        }
        if (*s.at == '{' || *s.at == '[')
            depth++;
        else if (*s.at == '}' || *s.at == ']')
            depth--;
        s.at++;
    }
    return 0;
}

static long read_pid(void) {
    char *text = malloc(MAX_STATE);
    size_t have = 0;
    ssize_t n = 0;
    while (text && have < MAX_STATE && (n = read(STDIN_FILENO, text + have, MAX_STATE - have)) > 0)
        have += (size_t)n;
    long pid = text && n == 0 ? find_pid(text, have) : 0;
    free(text);
    return pid;
}

/* ---- the server ------------------------------------------------------------------------------------------------ */

/* Whether the server did what the request says, in time. */
static bool served(const char *state_dir, const char *request) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const struct timeval time = {.tv_sec = SECONDS};
    char answer[256];
    int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    size_t room = sizeof address.sun_path;
    bool good = s >= 0 && (size_t)snprintf(address.sun_path, room, "%s/" SOCKET, state_dir) < room;
    good = good && !setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time); /* connect(2) waits as long, too */
    good = good && !setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    good = good && !connect(s, (struct sockaddr *)&address, sizeof address);
    good = good && send(s, request, strlen(request), MSG_NOSIGNAL) == (ssize_t)strlen(request);
    ssize_t size = good ? recv(s, answer, sizeof answer, 0) : -1;
    if (s >= 0)
        close(s);
    return size >= (ssize_t)strlen(SUCCESS) && !memcmp(answer, SUCCESS, strlen(SUCCESS));
}

/* Whether the driver has just not answered: then the helper decides at once, and nobody waits for the server. */
static bool is_hung(const char *state_dir) {
    char path[PATH_MAX];
    struct stat st;
    if ((size_t)snprintf(path, sizeof path, "%s/" RECORDS "/" HUNG, state_dir) >= sizeof path || stat(path, &st))
        return false;
    return labs((long)(time(NULL) - st.st_mtime)) < HUNG_SECONDS;
}

__attribute__((noreturn)) static void exec_helper(char **args) {
    static char path[PATH_MAX + sizeof HELPER];
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 1);
    char *name = n > 0 ? strrchr(path, '/') : NULL;
    if (!name)
        refuse("GH-504: /proc/self/exe cannot be read; is /proc mounted?");
    strcpy(name + 1, HELPER);
    execve(path, args, environ);
    refuse("GH-414: " HELPER " cannot be started; run `gpu-hook install` again");
}

static bool is_key(const char *text) {
    return strlen(text) == KEY_DIGITS && strspn(text, "0123456789abcdef") == KEY_DIGITS;
}

int main(int argc, char **argv) {
    char text[PATH_MAX], number[16] = "";
    bool set = argc == 4 && !strcmp(argv[1], "set"), end = argc == 4 && !strcmp(argv[1], "end");
    if (argc != 4 || !(set || end || !strcmp(argv[1], "clear")) || !is_key(argv[3]))
        refuse("GH-406: gpu-hook-boundary takes set, end or clear, a state directory and a grant's key; only a runtime "
               "calls it");
    const char *state_dir = argv[2], *key = argv[3];
    if (set) {
        long pid = read_pid();
        if (pid <= 0)
            refuse("GH-406: the state on standard input names no pid; only an OCI runtime calls this program");
        snprintf(number, sizeof number, "%ld", pid);
        snprintf(text, sizeof text, "{\"do\":\"set\",\"grant\":\"%s\",\"pid\":%ld}", key, pid);
    } else {
        while (read(STDIN_FILENO, text, sizeof text) > 0) /* else crun, which writes the state, is killed by SIGPIPE */
            continue;
        if ((size_t)snprintf(text, sizeof text, "%s/" RECORDS "/%s", state_dir, key) < sizeof text &&
            access(text, F_OK))
            return 0; /* no limit was set */
        snprintf(text, sizeof text, "{\"do\":\"%s\",\"grant\":\"%s\"}", argv[1], key);
    }
    bool hung = (set || end) && is_hung(state_dir);
    if ((hung && end) || (!hung && served(state_dir, text)))
        return 0;
    exec_helper((char *[]){HELPER, "boundary", argv[1], argv[3], set ? number : NULL, NULL});
}
