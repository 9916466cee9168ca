// Stores standard input as a title.

#include <stdio.h>
#include <stdlib.h>
#include <tactus.h>

enum { LEN = 64 << 10 };

static void check(int result) {
    if (result < 0) {
        fprintf(stderr, "store: %s\n", tactus_error());
        exit(1);
    }
}

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: store SOCKET TITLE\n");
        return 2;
    }
    tactus_client *client;
    tactus_writer *writer;
    check(tactus_connect(arguments[1], NULL, &client));
    check(tactus_create(client, arguments[2], NULL, &writer));

    static char bytes[LEN];
    size_t len;
    while ((len = fread(bytes, 1, LEN, stdin)) > 0)
        check(tactus_write_all(writer, bytes, len));
    // Without a publication nothing is left of the title.
    if (ferror(stdin)) {
        fprintf(stderr, "store: the input cannot be read\n");
        return 1;
    }
    check(tactus_publish(writer, 0));
    tactus_disconnect(client);
    return 0;
}
