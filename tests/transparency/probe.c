// Prints everything that a process can know about itself, a fact a line, so that two runs can be
// compared. `probe PID ...`: PID is the shell's, for what can only be told in relation to it.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/auxv.h>
#include <sys/time.h>
#include <termios.h>
#include <unistd.h>

extern char **environ;

static void bytes(const char *name, const char *text)
{
    printf("%s ", name);
    for (; *text; text++) {
        unsigned char byte = *text;
        if (byte > 32 && byte < 127 && byte != '\\')
            putchar(byte);
        else
            printf("\\x%02x", byte);
    }
    putchar('\n');
}

static int is_named(const char *entry, const char *name)
{
    size_t length = strlen(name);
    return strncmp(entry, name, length) == 0 && entry[length] == '=';
}

// What only a gated command has, and has to have.
static int is_of_the_session(const char *entry)
{
    return is_named(entry, "EXEC_WRAPPER") || is_named(entry, "CODEX_ESCALATE_SOCKET");
}

static void file(const char *name, const char *path, const char *const *prefixes)
{
    char line[4096];
    FILE *stream = fopen(path, "re");
    if (!stream) {
        printf("%s: error %d\n", name, errno);
        return;
    }
    while (fgets(line, sizeof line, stream)) {
        int wanted = !prefixes;
        for (const char *const *prefix = prefixes; prefix && *prefix; prefix++)
            wanted |= strncmp(line, *prefix, strlen(*prefix)) == 0;
        if (wanted)
            printf("%s: %s", name, line);
    }
    fclose(stream);
}

static void descriptors(int session)
{
    for (int fd = 0; fd < 1024; fd++) {
        struct stat about;
        if (fd == session || fstat(fd, &about) != 0)
            continue;
        char path[64], target[4096];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(path, target, sizeof target - 1);
        target[length < 0 ? 0 : length] = 0;
        char *number = strchr(target, '[');
        if (number) // pipe:[123], socket:[123]
            *number = 0;
        off_t offset = S_ISREG(about.st_mode) ? lseek(fd, 0, SEEK_CUR) : 0;
        printf("descriptor %d: flags %x, mode %x, type %o, offset %ld, terminal %d, %s\n", fd,
               fcntl(fd, F_GETFD), fcntl(fd, F_GETFL), about.st_mode & S_IFMT, (long)offset,
               isatty(fd), target);
    }
}

static void terminal(pid_t shell)
{
    int tty = open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY);
    printf("/dev/tty: %s\n", tty < 0 ? strerror(errno) : "opens");
    if (tty < 0)
        return;
    struct winsize size = {0};
    struct termios mode = {0};
    ioctl(tty, TIOCGWINSZ, &size);
    tcgetattr(tty, &mode);
    printf("size %d x %d\n", size.ws_row, size.ws_col);
    printf("modes %x %x %x %x\n", mode.c_iflag, mode.c_oflag, mode.c_cflag, mode.c_lflag);
    printf("in foreground: %d\n", tcgetpgrp(tty) == getpgrp());
    printf("shell in foreground: %d\n", tcgetpgrp(tty) == getpgid(shell));
    printf("session of the terminal: %d\n", tcgetsid(tty) == getsid(0));
    close(tty);
}

int main(int argc, char **argv)
{
    const char *session = getenv("CODEX_ESCALATE_SOCKET");
    pid_t shell = argc > 1 ? atoi(argv[1]) : 0;
    for (int i = 0; i < argc; i++)
        if (i != 1) // the shell's id differs
            bytes("argument", argv[i]);
    for (char **entry = environ; *entry; entry++)
        if (!is_of_the_session(*entry))
            bytes("environment", *entry);
    char directory[4096];
    bytes("directory", getcwd(directory, sizeof directory) ? directory : strerror(errno));
    struct stat here = {0};
    stat(".", &here);
    printf("directory's links %ld\n", (long)here.st_nlink);
    bytes("file", (const char *)getauxval(AT_EXECFN));
    static const char *const status[] = {"Name:", "Umask:", "State:", "Uid:", "Gid:", "Groups:", "Threads:",
        "SigPnd:", "ShdPnd:", "SigBlk:", "SigIgn:", "SigCgt:", "CapInh:", "CapPrm:", "CapEff:", "CapBnd:",
        "CapAmb:", "NoNewPrivs:", "Seccomp:", "Cpus_allowed:", "Mems_allowed:", "THP_enabled:", NULL};
    file("status", "/proc/self/status", status);
    file("limits", "/proc/self/limits", NULL);
    file("oom_score_adj", "/proc/self/oom_score_adj", NULL);
    file("cgroup", "/proc/self/cgroup", NULL);
    file("coredump_filter", "/proc/self/coredump_filter", NULL);
    file("timerslack_ns", "/proc/self/timerslack_ns", NULL);
    errno = 0;
    printf("nice %d\n", getpriority(PRIO_PROCESS, 0));
    struct sched_param parameter = {0};
    sched_getparam(0, &parameter);
    printf("scheduler %d, priority %d\n", sched_getscheduler(0), parameter.sched_priority);
    printf("io priority %ld\n", syscall(SYS_ioprio_get, 1, 0));
    printf("personality %x\n", personality(0xffffffff));
    int number = -1;
    prctl(PR_GET_PDEATHSIG, &number);
    printf("signal at the parent's death %d\n", number);
    prctl(PR_GET_CHILD_SUBREAPER, &number);
    printf("subreaper %d\n", number);
    printf("dumpable %d, keep capabilities %d, secure bits %x\n", prctl(PR_GET_DUMPABLE),
           prctl(PR_GET_KEEPCAPS), prctl(PR_GET_SECUREBITS));
    struct itimerval timer = {0};
    getitimer(ITIMER_REAL, &timer);
    printf("alarm %d\n", timer.it_value.tv_sec != 0 || timer.it_value.tv_usec != 0);
    struct rusage children = {0};
    getrusage(RUSAGE_CHILDREN, &children);
    printf("children's time %d\n", children.ru_utime.tv_sec || children.ru_stime.tv_sec);
    if (shell) {
        printf("the shell's group: %d\n", getpgrp() == getpgid(shell));
        // Not whether it leads the group: of an escalated job the wrapper does, which the shell started.
        printf("the shell's session: %d\n", getsid(0) == getsid(shell));
        printf("leads a session: %d\n", getsid(0) == getpid());
        terminal(shell);
    }
    descriptors(session ? atoi(session) : -1);
    return 0;
}
