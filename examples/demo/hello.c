#include <stdio.h>

int main(void) {
    puts("hello from the sandbox");
    return 0;
}
