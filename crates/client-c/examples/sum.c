// Prints the sum of all bytes of a title.

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <tactus.h>

enum { LEN = 64 << 10, READS = 4 };

static int64_t checked(int64_t result) {
    if (result < 0) {
        fprintf(stderr, "sum: %s\n", tactus_error());
        exit(1);
    }
    return result;
}

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: sum SOCKET TITLE\n");
        return 2;
    }
    tactus_client *client;
    tactus_title *title;
    tactus_file_info info;
    checked(tactus_connect(arguments[1], NULL, &client));
    checked(tactus_open(client, arguments[2], &title));
    checked(tactus_info(title, &info));

    uint64_t next = 0, sum = 0;
    for (int nth = 0; nth < READS; nth++, next += LEN) {
        tactus_buffer buffer;
        checked(tactus_buffer_new(client, LEN, &buffer));
        checked(tactus_submit(client, title, next, buffer, 0, NULL));
    }
    tactus_completion completion;
    while (checked(tactus_wait(client, -1, &completion)) > 0) {
        int64_t len = checked(completion.result);
        for (int64_t at = 0; at < len; at++)
            sum += completion.buffer.data[at];
        if (next < info.len) {
            checked(tactus_submit(client, title, next, completion.buffer, 0, NULL));
            next += LEN;
        } else {
            tactus_buffer_free(client, completion.buffer);
        }
    }
    printf("%" PRIu64 "\n", sum);
    tactus_close(title);
    tactus_disconnect(client);
    return 0;
}
