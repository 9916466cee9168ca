// Records standard input as a title, at a rate in Mbit/s.

#include <stdio.h>
#include <stdlib.h>
#include <tactus.h>

static int64_t checked(int64_t result) {
    if (result < 0) {
        fprintf(stderr, "record: %s\n", tactus_error());
        exit(1);
    }
    return result;
}

int main(int count, char **arguments) {
    if (count != 4) {
        fprintf(stderr, "usage: record SOCKET TITLE MBIT\n");
        return 2;
    }
    tactus_client *client;
    tactus_recording *recording;
    tactus_recording_options options = {.rate = strtoull(arguments[3], NULL, 10) * 1000000};
    checked(tactus_connect(arguments[1], NULL, &client));
    checked(tactus_record(client, arguments[2], &options, &recording));

    // The bytes are read into the ring, where the server takes them.
    size_t len;
    do {
        uint8_t *space;
        int64_t room = checked(tactus_recording_wait(recording, -1, &space));
        len = fread(space, 1, room, stdin);
        checked(tactus_recording_commit(recording, len));
    } while (len > 0);
    checked(tactus_recording_finish(recording));
    tactus_disconnect(client);
    return 0;
}
