// Builds a title in memory out of standard input, durable after each megabyte.

#include <stdio.h>
#include <stdlib.h>
#include <tactus.h>

enum { STEP = 1 << 20 };

static void check(int result) {
    if (result < 0) {
        fprintf(stderr, "build: %s\n", tactus_error());
        exit(1);
    }
}

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: build SOCKET TITLE\n");
        return 2;
    }
    tactus_client *client;
    tactus_memory *memory;
    tactus_memory_view info;
    check(tactus_connect(arguments[1], NULL, &client));
    check(tactus_memory_create(client, arguments[2], TACTUS_REPLACE_TITLES, &memory));
    check(tactus_memory_info(memory, &info));

    uint64_t len = 0;
    while (!feof(stdin)) {
        if (len == info.len) {
            // All bytes so far are final; they outlive a crash from here on.
            check(tactus_memory_sync(memory, len));
            check(tactus_memory_grow(memory, len + STEP));
            check(tactus_memory_info(memory, &info));
        }
        len += fread(info.data + len, 1, info.len - len, stdin);
        if (ferror(stdin)) {
            fprintf(stderr, "build: the input cannot be read\n");
            return 1;
        }
    }
    check(tactus_memory_publish(memory, len, 0));
    tactus_disconnect(client);
    return 0;
}
