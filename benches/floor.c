/* The least that a wrapper can do: hand over one end of a fresh socket pair, wait for one byte, and
   become the command. Linked statically, it is the floor that the real wrapper is measured against. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

extern char **environ;

int main(int argc, char **argv) {
    const char *number = getenv("CODEX_ESCALATE_SOCKET");
    int pair[2];
    char byte = 0;
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr header;
    } control;
    struct iovec part = {&byte, 1};
    struct msghdr message = {0};

    if (argc < 3 || !number || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return 125;
    memset(&control, 0, sizeof control);
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = &control;
    message.msg_controllen = sizeof control.bytes;
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&control.header), &pair[1], sizeof(int));
    if (sendmsg(atoi(number), &message, 0) != 1)
        return 125;
    close(pair[1]);
    if (read(pair[0], &byte, 1) != 1)
        return 125;
    execve(argv[1], argv + 2, environ);
    return 127;
}
