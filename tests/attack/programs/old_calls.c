/* Makes a user namespace by interfaces of other machines, whose calls have other numbers: those of 32 bit
   programs, and of x32. Ends with 77 where the kernel has no such interface. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#define LACKING 77
#define NEW_USER 0x10000000

#if defined(__x86_64__)
static void absent(int number)
{
    (void)number;
    _exit(LACKING);
}

int main(int count, char **arguments)
{
    long result;

    if (count > 1 && strcmp(arguments[1], "32") == 0) {
        signal(SIGSEGV, absent);
        __asm__ volatile("int $0x80" : "=a"(result) : "a"(310L), "b"((long)NEW_USER) : "memory", "r8", "r9", "r10", "r11");
        if ((int)result == -ENOSYS)
            return LACKING;
        return (int)result != 0;
    }
    result = syscall(0x40000000L + 272, NEW_USER);
    if (result < 0 && errno == ENOSYS)
        return LACKING;
    return result != 0;
}
#else
int main(void)
{
    return LACKING;
}
#endif
