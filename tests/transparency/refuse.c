/* Preloaded: executing a file whose name begins with "refused" fails with $REFUSE_WITH, as where a security
   module, a full table or a broken disk has it fail. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int execve(const char *path, char *const argv[], char *const envp[])
{
    static int (*next)(const char *, char *const[], char *const[]);
    const char *name = strrchr(path, '/'), *with = NULL;

    if (next == NULL)
        next = (int (*)(const char *, char *const[], char *const[]))dlsym(RTLD_NEXT, "execve");
    name = name == NULL ? path : name + 1;
    for (char *const *entry = envp; *entry != NULL && with == NULL; entry++)
        if (strncmp(*entry, "REFUSE_WITH=", 12) == 0)
            with = *entry + 12;
    if (with != NULL && strncmp(name, "refused", 7) == 0) {
        errno = atoi(with);
        return -1;
    }
    return next(path, argv, envp);
}
