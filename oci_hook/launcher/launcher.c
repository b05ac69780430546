/* The program that container engines call: gpu-hook-runtime, and (with -DHOOK) oci-gpu-hook.
 *
 * It decides in less than a millisecond whether Python is needed at all. Every call but `create`, `run` and `restore`, and
 * every container that asks for nothing, goes to the real runtime with its arguments untouched; an `exec` in a container
 * with a grant gets the grant's environment on the way (exec_env.h), and before its end what the runtime knows of it is kept
 * (keep_state.h), and the driver's soft limits are made 0 (end_limits.h). What the launcher does not
 * understand it hands over to Python, which either understands it or refuses with a code; nothing is guessed.
 *
 * The install's prefix comes from /proc/self/exe (PREFIX/bin/NAME), never from argv[0] or the environment.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "end_limits.h"
#include "exec_env.h"
#include "flags.h"
#include "flat_yaml.h"
#include "keep_state.h"
#include "own_python.h"
#include "owner.h"

#if !defined(ASKS) || !defined(NEAR_KEYS) || !defined(NEAR_MOUNTS)
#error "build.py defines ASKS, NEAR_KEYS and NEAR_MOUNTS from the Python code"
#endif
#if !defined(RUNTIME) || !defined(PYTHON) || !defined(STATE_DIR) || !defined(OWN_PYTHON)
#error "build.py defines RUNTIME, PYTHON, STATE_DIR and OWN_PYTHON from the Python code"
#endif

#ifdef HOOK
#define START "lib/gpu-hook/hook.py"
#else
#define START "lib/gpu-hook/runtime.py"
#endif
#define LOADER "lib/gpu-hook/load.py"
#define START_END "# end\n" /* the last line of launcher/start.py and load.py */
#define SETTINGS "etc/settings.yaml"
#define MAX_SPEC (16 << 20) /* oci/spec.py MAX_SIZE */
#define MAX_PATH 1024       /* config/keys.py MAX_PATH */

extern char **environ;

static struct {
    char prefix[PATH_MAX];
    char runtime[MAX_PATH]; /* the real runtime */
    char python[MAX_PATH];  /* "": the install's own, or else PYTHON */
    char state_dir[MAX_PATH];
    bool standalone;
    bool understood; /* settings.yaml is within the subset of flat_yaml.h, and its mode, runtime and python are valid */
    bool runtime_known; /* `runtime` is what settings.yaml says, whatever is wrong in its other lines */
    struct stat self;
    const char *log; /* the file of --log, where the engine looks for errors; NULL: none */
    bool log_json;
} g;

/* ---- errors ---------------------------------------------------------------------------------------------------- */

/* Copies text into a JSON (or logrus) string without its quotes. Bytes that could break the line are escaped, or become ?. */
static void escape(char *to, size_t room, const char *from) {
    char *end = to + room - 7;
    for (; *from && to < end; from++) {
        unsigned char c = (unsigned char)*from;
        if (c == '"' || c == '\\')
            *to++ = '\\';
        if (c < 0x20 || c >= 0x7f)
            *to++ = '?';
        else
            *to++ = (char)c;
    }
    *to = 0;
}

/* Writes one coded line to standard error and the log, and ends the program. Nothing has been changed until then. */
__attribute__((noreturn, format(printf, 1, 2))) static void refuse(const char *format, ...) {
    char text[1024], quoted[2100], when[40];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (strlen(text) > 296)
        strcpy(text + 292, " ...");
    escape(quoted, sizeof quoted, text);
    time_t now = time(NULL);
    struct tm tm;
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
    const int flags =
        O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK; /* O_NONBLOCK: a FIFO may have no reader */
    int fd = g.log ? open(g.log, flags, 0644) : -1;
    if (fd >= 0) {
        if (g.log_json)
            dprintf(fd, "{\"level\":\"error\",\"msg\":\"%s\",\"time\":\"%s\"}\n", quoted, when);
        else
            dprintf(fd, "time=\"%s\" level=error msg=\"%s\"\n", when, quoted);
        dprintf(STDERR_FILENO, "%s\n", text);
    } else {
        dprintf(STDERR_FILENO, "time=\"%s\" level=error msg=\"%s\"\n", when, quoted);
    }
    _exit(1);
}

/* ---- the install ----------------------------------------------------------------------------------------------- */

static void find_prefix(void) {
    ssize_t n = readlink("/proc/self/exe", g.prefix, sizeof g.prefix - 1);
    if (n <= 0)
        refuse("GH-504: /proc/self/exe cannot be read: %s; is /proc mounted?", strerror(errno));
    g.prefix[n] = 0;
    char *name = strrchr(g.prefix, '/');
    if (!name || name - g.prefix < 5 || strncmp(name - 4, "/bin", 4))
        refuse("GH-504: %s is not in the bin folder of an install; run `gpu-hook install --prefix DIR`", g.prefix);
    name[-4] = 0;
    if (stat("/proc/self/exe", &g.self))
        refuse("GH-504: /proc/self/exe: %s", strerror(errno));
}

/* Whether the path has this component, given with the slash before it. */
static bool has_component(const char *path, const char *component) {
    size_t size = strlen(component);
    for (; (path = strstr(path, component)); path++)
        if (!path[size] || path[size] == '/')
            return true;
    return false;
}

/* Copies a path of settings.yaml, if it is one: absolute and in its shortest form, as config/keys.py checks it. */
static bool set_path(char *to, struct text value) {
    char path[MAX_PATH];
    if (!value.size || value.size >= sizeof path || value.at[0] != '/')
        return false;
    memcpy(path, value.at, value.size);
    path[value.size] = 0;
    if (strstr(path, "//") || has_component(path, "/.") || has_component(path, "/..") ||
        (value.size > 1 && path[value.size - 1] == '/'))
        return false;
    strcpy(to, path);
    return true;
}

static bool is(struct text t, const char *word) { return t.size == strlen(word) && !memcmp(t.at, word, t.size); }

static void read_settings_text(struct text rest) {
    bool good = true, runtime_good = true;
    int modes = 0, runtimes = 0, pythons = 0;
    struct setting s;
    for (enum flat_yaml what; (what = flat_yaml_next(&rest, &s)) != FLAT_YAML_END;) {
        if (what == FLAT_YAML_OUTSIDE) {
            good = false;
        } else if (is(s.key, "runtime")) {
            runtime_good = !runtimes++ && !s.list && set_path(g.runtime, s.value);
        } else if (is(s.key, "python")) {
            good &= !pythons++ && !s.list && (is(s.value, "auto") || set_path(g.python, s.value));
        } else if (is(s.key, "state_dir")) {
            if (s.list ||
                !set_path(g.state_dir, s.value)) /* Python refuses the next start; `exec` goes on without it */
                g.state_dir[0] = 0;
        } else if (is(s.key, "mode")) {
            g.standalone = is(s.value, "standalone");
            good &= !modes++ && (g.standalone || is(s.value, "on-top") || is(s.value, "below"));
        }
    }
    g.understood = good && runtime_good;
    g.runtime_known = g.understood || (runtimes == 1 && runtime_good);
}

/* PREFIX/etc/settings.yaml. Only root may have written it; otherwise none of it is believed. */
static void read_settings(void) {
    static char path[PATH_MAX + sizeof SETTINGS + 1], text[FLAT_YAML_MAX + 1];
    struct stat st;
    strcpy(g.runtime, RUNTIME);
    strcpy(g.state_dir, STATE_DIR);
    g.standalone = true;
    snprintf(path, sizeof path, "%s/" SETTINGS, g.prefix);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return;
    if (!fstat(fd, &st) && S_ISREG(st.st_mode) && is_roots(&st) && !(st.st_mode & 022)) {
        ssize_t n = read(fd, text, sizeof text);
        if (n >= 0 && n <= FLAT_YAML_MAX)
            read_settings_text((struct text){text, (size_t)n});
    }
    close(fd);
}

/* ---- the two ways out ------------------------------------------------------------------------------------------ */

/* Refuses to run, as root, a program that others could change. `key` is the setting that names it. */
static void check_program(const char *code, const char *key, const char *path, struct stat *st) {
    if (stat(path, st))
        refuse("%s: %s %s: %s; set `%s` in settings.yaml", code, key, path, strerror(errno), key);
    if (!S_ISREG(st->st_mode) || !is_roots(st) || (st->st_mode & 022))
        refuse("%s: %s %s must be a program of root that nobody else can write; set `%s` in settings.yaml", code, key,
               path, key);
}

#ifndef HOOK
__attribute__((noreturn)) static void exec_runtime(char **argv) {
    struct stat st;
    check_program("GH-503", "runtime", g.runtime, &st);
    if (st.st_dev == g.self.st_dev && st.st_ino == g.self.st_ino)
        refuse("GH-503: runtime %s is gpu-hook-runtime itself; set `runtime` in settings.yaml to the real one",
               g.runtime);
    argv[0] = g.runtime;
    execve(g.runtime, argv, environ);
    refuse("GH-503: runtime %s: %s; set `runtime` in settings.yaml", g.runtime, strerror(errno));
}
#endif

/* The file that Python is to run must be root's alone, and whole. Python would end with success for an empty file, or one
 * that was cut short between two lines; for a missing file its error has no code and is in no log. */
static void check_start(const char *file) {
    char path[PATH_MAX + sizeof START + 1];
    snprintf(path, sizeof path, "%s/%s", g.prefix, file);
    char end[sizeof START_END - 1];
    const off_t size = sizeof end;
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st))
        refuse("GH-504: %s: %s; run `gpu-hook install --prefix %s`", path, strerror(errno), g.prefix);
    if (!S_ISREG(st.st_mode) || !is_roots(&st) || (st.st_mode & 022))
        refuse("GH-504: %s must be a file of root that nobody else can write; run `gpu-hook install` again", path);
    if (st.st_size < size || pread(fd, end, sizeof end, st.st_size - size) != size ||
        memcmp(end, START_END, sizeof end))
        refuse("GH-504: %s is not all there; run `gpu-hook install` again", path);
    close(fd);
}

/* Writes the words that start Python: the one of settings.yaml, else the install's own, else the machine's. */
static size_t python_words(char **args) {
    static char own[PATH_MAX + sizeof "/lib/" OWN_PYTHON];
    struct stat st;
    sprintf(own, "%s/lib/" OWN_PYTHON, g.prefix);
    size_t n = g.python[0] ? 0 : own_python(args, own);
    if (!n || stat(args[0], &st)) {
        memset(args, 0, OWN_PYTHON_WORDS * sizeof *args);
        args[0] = g.python[0] ? g.python : PYTHON;
        n = 1;
    }
    check_program("GH-504", "python", args[0], &st);
    return n;
}

__attribute__((noreturn)) static void exec_python(int argc, char **argv) {
    /* -I: no PYTHON* variable, no user site, no script folder in sys.path. -S: no site-packages. */
    static char start[PATH_MAX + sizeof START + 1];
    snprintf(start, sizeof start, "%s/" START, g.prefix);
    for (int fd = 0; fd <= STDERR_FILENO; fd++) /* otherwise the first file that Python opens becomes its stderr */
        if (fcntl(fd, F_GETFD) < 0)
            open("/dev/null", O_RDWR);
    char **args = calloc((size_t)argc + OWN_PYTHON_WORDS + 4, sizeof *args);
    if (!args)
        refuse("GH-504: out of memory");
    check_start(START);
    check_start(LOADER);
    size_t at = python_words(args);
    args[at++] = "-I";
    args[at++] = "-S";
    args[at++] = start;
    for (int i = 1; i < argc; i++)
        args[at++] = argv[i];
#ifdef HOOK
    /* A hook without `env` gets the runtime's environment; some runtimes give it the container's, with LD_PRELOAD. */
    static char *environ[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", NULL};
#endif
    execve(args[0], args, environ);
    refuse("GH-504: python %s: %s; set `python` in settings.yaml", args[0], strerror(errno));
}

#ifndef HOOK
/* ---- the command line ------------------------------------------------------------------------------------------ */

/* The flags of runc, crun and youki together. STOP: the runtime prints something and ends, whatever follows. */
static const struct known before_command[] = {
    {"root", VALUE},
    {"log", VALUE},
    {"log-format", VALUE},
    {"criu", VALUE},
    {"rootless", VALUE},
    {"cgroup-manager", VALUE},
    {"log-level", VALUE},
    {"debug", SWITCH},
    {"systemd-cgroup", SWITCH},
    {"version", STOP},
    {"v", STOP},
    {"help", STOP},
    {"h", STOP},
    {0},
};
static const struct known of_create[] = {
    {"bundle", VALUE},
    {"b", VALUE},
    {"console-socket", VALUE},
    {"pid-file", VALUE},
    {"pidfd-socket", VALUE},
    {"preserve-fds", VALUE},
    {"no-pivot", SWITCH},
    {"no-new-keyring", SWITCH},
    {"no-subreaper", SWITCH},
    {"keep", SWITCH},
    {"detach", SWITCH},
    {"d", SWITCH},
    {"help", STOP},
    {"h", STOP},
    /* flags of restore */
    {"image-path", VALUE},
    {"work-path", VALUE},
    {"manage-cgroups-mode", VALUE},
    {"empty-ns", VALUE},
    {"lsm-profile", VALUE},
    {"lsm-mount-context", VALUE},
    {"auto-dedup", SWITCH},
    {"lazy-pages", SWITCH},
    {"shell-job", SWITCH},
    {"tcp-established", SWITCH},
    {"ext-unix-sk", SWITCH},
    {"file-locks", SWITCH},
    {0},
};

/* Looks for --log and --log-format in all words, for a command line in which an earlier word is not understood. */
static void find_log(char **argv) {
    const char *name, *value;
    for (int i = 1; argv[i]; i++) {
        if (argv[i][0] != '-')
            continue;
        int at = i;
        enum flag kind = read_flag(before_command, argv, &at, &name, &value);
        if (kind == VALUE && !strcmp(name, "log"))
            g.log = value;
        else if (kind == VALUE && !strcmp(name, "log-format"))
            g.log_json = !strcmp(value, "json");
    }
}

struct call {
    enum { PASS, EXEC, KEEP, CREATE, DOUBT } what; /* KEEP: start, kill, delete */
    const char *bundle;
    const char *root; /* of --root; "": none */
    int command;      /* the command's place in argv */
};

static struct call read_call(char **argv) {
    struct call call = {PASS, ".", "", 0};
    const char *name, *value;
    int i = 1;
    for (; argv[i] && argv[i][0] == '-'; i++) {
        enum flag kind = read_flag(before_command, argv, &i, &name, &value);
        if (kind == STOP)
            return call;
        if (kind == UNKNOWN) {
            find_log(argv);
            call.what = DOUBT;
            return call;
        }
        if (!strcmp(name, "log"))
            g.log = value;
        else if (!strcmp(name, "log-format"))
            g.log_json = !strcmp(value, "json");
        else if (!strcmp(name, "root"))
            call.root = value;
    }
    call.command = i;
    if (argv[i] && !strcmp(argv[i], "exec"))
        call.what = EXEC;
    if (argv[i] && (!strcmp(argv[i], "start") || !strcmp(argv[i], "kill") || !strcmp(argv[i], "delete")))
        call.what = KEEP;
    if (!argv[i] || (strcmp(argv[i], "create") && strcmp(argv[i], "run") && strcmp(argv[i], "restore")))
        return call;
    call.what = CREATE;
    bool seen = false;
    for (i++; argv[i]; i++) {
        if (argv[i][0] != '-' || !argv[i][1])
            continue; /* the container's id; runtimes take flags after it as well */
        enum flag kind = read_flag(of_create, argv, &i, &name, &value);
        if (kind == UNKNOWN || kind == STOP) {
            call.what = kind == STOP ? PASS : DOUBT; /* "--" is UNKNOWN as well */
            return call;
        }
        if (name[0] == 'b') {
            if (seen)
                call.what = DOUBT;
            seen = true;
            call.bundle = *value ? value : "."; /* runtimes take an empty --bundle= for the working directory */
        }
    }
    return call;
}

/* ---- config.json ----------------------------------------------------------------------------------------------- */

static const char *find(struct text t, const char *needle) { return memmem(t.at, t.size, needle, strlen(needle)); }

/* A config.json without any of these bytes asks for nothing (core/dialects/__init__.py: triggers). */
static const char *const asks[] = {ASKS, 0};
/* In the modes on-top and below: what the NVIDIA runtime would act on, or has left in the spec. */
static const char *const nvidia_asks[] = {
    "NVIDIA_", "nvidia", "libcuda", "CUDA_VERSION", "cdi.k8s.io/", "DOCKER_RESOURCE_", 0,
};

static bool any_of(struct text t, const char *const *needles) {
    for (; *needles; needles++)
        if (find(t, *needles))
            return true;
    return false;
}

/* Parts of annotation keys that may ask in words which nobody understands (core/near_misses.py), and of the paths of mounts. */
static const char *const near_keys[] = {NEAR_KEYS, 0};
static const char *const near_mounts[] = {NEAR_MOUNTS, 0};

/* Whether a key of some object has one of these parts, in small letters here and in whatever letters there. Programs' own
 * environment, arguments and paths are values, so what they say of GPUs costs nobody a start of Python. */
static bool in_key(struct text t, const char *const *parts) {
    const char *end = t.at + t.size;
    for (const char *p = t.at; p < end; p++) {
        const char *const *part = parts;
        while (*part &&
               ((*p | 0x20) != **part || (size_t)(end - p) < strlen(*part) || strncasecmp(p, *part, strlen(*part))))
            part++;
        if (!*part)
            continue;
        while (p < end && *p != '"') /* to the end of this string */
            p += *p == '\\' ? 2 : 1;
        for (p++; p < end && (*p == ' ' || *p == '\t' || *p == '\r' || *p == '\n'); p++)
            ;
        if (p < end && *p == ':')
            return true;
    }
    return false;
}

/* The part of config.json that begins with its annotations; nothing where it has none. */
static struct text annotations(struct text t) {
    const char *p = find(t, "\"annotations\"");
    return p ? (struct text){p, (size_t)(t.at + t.size - p)} : (struct text){t.at, 0};
}

/* The folder in which docker keeps the container with this id, with its last slash, as the source of the file that docker mounts
 * at /etc/hostname names it; 0 characters if this spec is not docker's. */
static struct text docker_folder(struct text t, const char *id) {
    static const char name[] = "/hostname\"";
    const char *end = t.at + t.size, *p = t.at;
    size_t length = strlen(id);
    while (length && (p = memmem(p, (size_t)(end - p), name, sizeof name - 1))) {
        const char *start = p;
        while (start > t.at && start[-1] != '"')
            start--;
        if ((size_t)(p - start) > length && start[0] == '/' && !memcmp(p - length, id, length))
            return (struct text){start, (size_t)(p - start) + 1};
        p++;
    }
    return (struct text){t.at, 0};
}

/* Whether docker has a label of ours for this container. docker hands no label to the runtime, and keeps them in its own
 * config.v2.json (oci/unclear.py reads them). */
static bool labelled(struct text t, const char *bundle) {
    static const char docker[] = "/moby/", config[] = "config.v2.json";
    static char path[PATH_MAX], text[1 << 16];
    const char *id = strstr(bundle, docker);
    if (!id)
        return false;
    struct text folder = docker_folder(t, id + sizeof docker - 1);
    if (!folder.size || folder.size + sizeof config > sizeof path)
        return false;
    memcpy(path, folder.at, folder.size);
    memcpy(path + folder.size, config, sizeof config);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, text, sizeof text);
    close(fd);
    const struct text labels = {text, n > 0 ? (size_t)n : 0};
    static const char *const ours[] = {"gpu-hook", "gpuhook", 0};
    return in_key(labels, ours);
}

/* Whether a mount in /run/gpu-hook may ask for a share, in whatever spelling of that path: "/run//gpu-hook",
 * "/run/./gpu-hook", "run/x/../gpu-hook" (oci/request_mounts.py reads them as the runtimes do). Folders of that name at other
 * places, such as /opt/gpu-hook, ask for nothing. */
static bool asks_by_mount(struct text t) {
    static const char name[] = "/gpu-hook";
    const char *end = t.at + t.size, *p = t.at;
    while ((p = memmem(p, (size_t)(end - p), name, sizeof name - 1))) {
        const char *above = p;
        while (above > t.at && (above[-1] == '/' || (above[-1] == '.' && above - t.at > 1 && above[-2] == '/')))
            above--;
        size_t room = (size_t)(above - t.at);
        if ((room >= 3 && !memcmp(above - 3, "run", 3)) || (room >= 2 && !memcmp(above - 2, "..", 2)))
            return true;
        p++;
    }
    return false;
}

/* Whether the text has an escape that could hide a character of the words above: "\/", or "\u00XX" of a letter, a digit,
 * '-', '.', '/' or '_'. Go's encoder writes only \u003c, \u003e, \u0026 and control characters, which hide none. */
static bool odd_escape(struct text t) {
    const char *end = t.at + t.size, *p = t.at;
    while ((p = memchr(p, '\\', (size_t)(end - p)))) {
        if (end - p < 6)
            return p + 1 < end && p[1] == '/';
        if (p[1] == '/')
            return true;
        if (p[1] == 'u' && p[2] == '0' && p[3] == '0') {
            char hex[3] = {p[4], p[5], 0}, *rest;
            long c = strtol(hex, &rest, 16);
            if (*rest || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' ||
                c == '.' || c == '/' || c == '_')
                return true;
        }
        p += p[1] == '\\' ? 2 : 1;
    }
    return false;
}

/* Whether the text has this key with the value "sandbox", in whatever JSON white space. */
static bool says_sandbox(struct text t, const char *quoted_key) {
    const char *p = find(t, quoted_key), *end = t.at + t.size;
    static const char value[] = "\"sandbox\"";
    if (!p)
        return false;
    for (p += strlen(quoted_key); p < end && strchr(" \t\r\n:", *p) && *p; p++)
        ;
    return (size_t)(end - p) >= sizeof value - 1 && !memcmp(p, value, sizeof value - 1);
}

/* Reads the config.json of a bundle. NONE: the runtime reports what is wrong with it. DOUBTFUL: it may ask for anything. */
static enum { NONE, DOUBTFUL, READ } read_spec(const char *bundle, struct text *t) {
    char path[PATH_MAX];
    struct stat st;
    if ((size_t)snprintf(path, sizeof path, "%s/config.json", bundle) >= sizeof path)
        return NONE;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
        return NONE;
    if (fd < 0)
        return DOUBTFUL; /* EWOULDBLOCK: another process has a lease on it */
    if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size > MAX_SPEC)
        return DOUBTFUL;
    char *buffer = malloc((size_t)st.st_size + 1);
    if (!buffer)
        return DOUBTFUL;
    size_t have = 0;
    ssize_t n;
    while ((n = read(fd, buffer + have, (size_t)st.st_size + 1 - have)) > 0)
        have += (size_t)n;
    close(fd);
    if (n < 0 || have > (size_t)st.st_size)
        return DOUBTFUL; /* unreadable, or it grows while we read */
    *t = (struct text){buffer, have};
    return READ;
}

/* Whether Python must look at the container of this bundle. */
static bool wanted(const char *bundle) {
    struct text t;
    switch (read_spec(bundle, &t)) {
    case NONE: return false;
    case DOUBTFUL: return true;
    case READ: break;
    }
    bool asked = any_of(t, asks) || asks_by_mount(t) || odd_escape(t) || in_key(annotations(t), near_keys) ||
                 any_of(t, near_mounts) || labelled(t, bundle);
    bool sandbox = says_sandbox(t, "\"io.kubernetes.cri.container-type\"") ||
                   says_sandbox(t, "\"io.kubernetes.cri-o.ContainerType\"");
    if (g.standalone)
        return asked && !sandbox; /* a container that is passed on gets no GPU */
    /* In these modes a container that is passed on could get a GPU without limits. */
    bool served = any_of(t, nvidia_asks) || find(t, "\\");
    return served || (asked && !sandbox);
}

/* Whether the bundle asks in our own words, without a doubt. Slurm writes each "/" as "\/". */
static bool asks_plainly(const char *bundle) {
    static const char *const ours[] = {"gpu-hook.io/", 0};
    struct text t;
    if (read_spec(bundle, &t) != READ)
        return false;
    char *plain = malloc(t.size + 1), *to = plain;
    for (const char *p = t.at, *end = t.at + t.size; plain && p < end; p++)
        if (*p != '\\' || p + 1 == end || p[1] != '/')
            *to++ = *p;
    t = (struct text){plain, (size_t)(to - plain)};
    return in_key(t, ours) || asks_by_mount(t);
}
#endif

int main(int argc, char **argv) {
    static const char rootless[] =
        "GH-303: the container asks for a share of a GPU, and the ledger of shares is root's: a rootless engine cannot "
        "grant one. Run it by root's docker, podman or runc, or leave out what asks for gpu-hook";
    if (argc < 1)
        refuse("GH-504: called without arguments");
#ifdef HOOK
    find_prefix();
    if (is_rootless(&g.self))
        refuse("%s", rootless);
    read_settings();
    exec_python(argc, argv);
#else
    struct call call = read_call(argv); /* first: it finds out where errors are to be logged */
    find_prefix();
    read_settings();
    if (is_rootless(&g.self)) { /* Python could not read root's ledger; what asks for nothing must not notice that */
        if (call.what == CREATE && asks_plainly(call.bundle))
            refuse("%s", rootless);
        exec_runtime(argv);
    }
    /* A container can be stopped and removed whatever is wrong in settings.yaml, as long as its `runtime` is known. None
     * is started then: Python says what is wrong. */
    if (call.what == EXEC && g.runtime_known)
        exec_runtime(with_grant_environment(argc, argv, call.command, call.root, g.runtime, g.state_dir));
    if (call.what == KEEP && g.runtime_known) {
        const char *key = keep_state(argv, call.command, call.root, g.runtime, g.state_dir);
        if (key && strcmp(argv[call.command], "start"))
            end_limits(g.prefix, g.state_dir, key);
        exec_runtime(argv);
    }
    if (call.what == PASS ? g.runtime_known : call.what == CREATE && g.understood && !wanted(call.bundle))
        exec_runtime(argv);
    exec_python(argc, argv);
#endif
}
