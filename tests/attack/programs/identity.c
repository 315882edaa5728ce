/* Says by its status whether it is root's. */
#include <unistd.h>

int main(void)
{
    return geteuid() != 0;
}
