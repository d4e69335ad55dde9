/* Runs a command and writes every program that it, or a child of it, executes:
 *
 *   follow FILE COMMAND...
 *
 *   exec  PID  PATH      appended to FILE before the program's loader runs
 *   environment  PID  DEVICE  INODE  GODEBUG    of the program before, where it can be read
 *   exit  CODE | signal NUMBER
 *
 * Only forks and execs stop the command (ptrace(2), PTRACE_SEIZE); its system calls run freely.
 * Exit code: that of the command, 128 + its signal, 127 if it cannot be executed, 126 if it cannot
 * be traced.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *output;

static void say(const char *line)
{
    int fd = open(output, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0 || write(fd, line, strlen(line)) < 0)
        perror(output);
    if (fd >= 0)
        close(fd);
}

static void say_exec(pid_t pid)
{
    char link[64], path[4096], line[4200];
    snprintf(link, sizeof link, "/proc/%d/exe", pid);
    ssize_t size = readlink(link, path, sizeof path - 1);
    path[size > 0 ? size : 0] = '\0';
    snprintf(line, sizeof line, "exec\t%d\t%s\n", pid, path);
    say(line);
}

/* The file is named by device and inode too: its path may mean another file elsewhere. */
static void say_environment(pid_t pid)
{
    static const char name[] = "GODEBUG=";
    char path[64], line[4200], *entry = NULL;
    size_t room = 0;
    ssize_t size;
    struct stat file;
    snprintf(path, sizeof path, "/proc/%d/exe", pid);
    if (stat(path, &file) != 0)
        return;
    snprintf(path, sizeof path, "/proc/%d/environ", pid);
    FILE *stream = fopen(path, "re");
    if (stream == NULL)
        return;
    const char *value = "";
    int readable = 1;
    errno = 0;
    while ((size = getdelim(&entry, &room, '\0', stream)) > 0)
        if (strncmp(entry, name, sizeof name - 1) == 0) {
            value = entry + sizeof name - 1;
            readable = strlen(value) < 4000 && value[strcspn(value, "\t\n\r")] == '\0';
            break;
        }
    if (readable && ferror(stream) == 0) {
        snprintf(line, sizeof line, "environment\t%d\t%llu\t%llu\t%s\n", pid,
                 (unsigned long long)file.st_dev, (unsigned long long)file.st_ino, value);
        say(line);
    }
    free(entry);
    fclose(stream);
}

static int follow(pid_t child)
{
    char line[64];
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, __WALL);
        if (pid < 0 && errno == EINTR)
            continue;
        if (pid < 0)
            return 126;
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            if (pid != child)
                continue;
            if (WIFEXITED(status))
                snprintf(line, sizeof line, "exit\t%d\n", WEXITSTATUS(status));
            else
                snprintf(line, sizeof line, "exit\tsignal %d\n", WTERMSIG(status));
            say(line);
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        }
        int event = status >> 16, sig = WSTOPSIG(status);
        if (event == PTRACE_EVENT_EXEC) {
            say_exec(pid);
            say_environment(pid);
        }
        if (event == PTRACE_EVENT_STOP && sig != SIGTRAP)
            ptrace(PTRACE_LISTEN, pid, NULL, NULL); /* job control stopped it */
        else
            ptrace(PTRACE_CONT, pid, NULL, (void *)(long)(event == 0 ? sig : 0));
    }
}

int main(int argc, char **argv)
{
    int ready[2];
    char byte = 0;
    if (argc < 3 || pipe2(ready, O_CLOEXEC) != 0)
        return 126;
    output = argv[1];
    pid_t child = fork();
    if (child < 0)
        return 126;
    if (child == 0) {
        if (read(ready[0], &byte, 1) != 1)
            _exit(126);
        execvp(argv[2], argv + 2);
        fprintf(stderr, "%s: %s\n", argv[2], strerror(errno));
        _exit(127);
    }
    signal(SIGINT, SIG_IGN); /* the terminal sends it to the command too */
    long options = PTRACE_O_TRACEEXEC | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK
                   | PTRACE_O_TRACECLONE;
    if (ptrace(PTRACE_SEIZE, child, NULL, (void *)options) != 0) {
        fprintf(stderr, "ptrace: %s\n", strerror(errno));
        kill(child, SIGKILL);
        return 126;
    }
    if (write(ready[1], &byte, 1) != 1)
        return 126;
    return follow(child);
}
