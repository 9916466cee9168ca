// Reads a title of the server whose socket is named, in each way of the library, and prints what
// it found. The test knows what that must be.

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tactus.h>

#define LEN 65536
#define READS 4

static void check(int64_t result, const char *what) {
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", what, tactus_error());
        exit(1);
    }
}

static uint64_t sum_of(const uint8_t *bytes, int64_t len) {
    uint64_t sum = 0;
    for (int64_t at = 0; at < len; at++)
        sum += bytes[at];
    return sum;
}

static int print_name(void *user, const char *name, const tactus_file_info *info) {
    int *count = user;
    printf("name %s %" PRIu64 "\n", name, info->len);
    // Ends after the third.
    return ++*count == 3 ? 7 : 0;
}

// The whole title with a few reads under way, waiting by the library or by an event loop.
static uint64_t sum_in_place(tactus_client *client, tactus_title *title, uint64_t len, int by_fd) {
    uint64_t next = 0, sum = 0, token;
    int under_way = 0;
    for (int nth = 0; nth < READS; nth++, next += LEN, under_way++) {
        tactus_buffer buffer;
        check(tactus_buffer_new(client, LEN, &buffer), "buffer");
        check(tactus_submit(client, title, next, buffer, 0, &token), "submit");
    }
    while (under_way > 0) {
        tactus_completion completion;
        if (!by_fd) {
            check(tactus_wait(client, -1, &completion), "wait");
        } else {
            while (tactus_poll(client, &completion) == 0) {
                int armed = tactus_arm(client);
                check(armed, "arm");
                if (armed) {
                    struct pollfd fd = {.fd = tactus_fd(client), .events = POLLIN};
                    poll(&fd, 1, -1);
                    tactus_disarm(client);
                }
            }
        }
        check(completion.result, "read");
        sum += sum_of(completion.buffer.data, completion.result);
        if (next < len) {
            check(tactus_submit(client, title, next, completion.buffer, 0, NULL), "submit");
            next += LEN;
        } else {
            tactus_buffer_free(client, completion.buffer);
            under_way--;
        }
    }
    return sum;
}

// The title as a stream: in place, and by copies.
static void stream_all(tactus_client *client, tactus_title *title, uint64_t len) {
    tactus_stream *stream;
    tactus_stream_options chosen = {.rate = 1};
    printf("busy %d\n", tactus_stream_new(client, title, &chosen, &stream) == -EBUSY);
    chosen = (tactus_stream_options){.first = 3, .rate = 16000000};
    check(tactus_stream_new(client, title, &chosen, &stream), "stream");
    printf("stream %" PRIu64 " %" PRIu64 "\n", tactus_stream_rate(stream),
           tactus_stream_position(stream));
    uint64_t sum = 0;
    while (tactus_stream_position(stream) < len / 2) {
        const uint8_t *bytes;
        int64_t count = tactus_stream_wait(stream, -1, &bytes);
        check(count, "wait for bytes");
        count = count > 5000 ? 5000 : count;
        sum += sum_of(bytes, count);
        check(tactus_stream_consume(stream, count), "consume");
    }
    printf("too much %d\n", tactus_stream_consume(stream, len) == -EINVAL);
    while (!tactus_stream_at_end(stream)) {
        uint8_t copy[7777];
        int64_t count = tactus_stream_read(stream, copy, sizeof copy);
        check(count, "read of a stream");
        sum += sum_of(copy, count);
    }
    printf("streamed %" PRIu64 "\n", sum);
    printf("behind %d\n", tactus_stream_seek(stream, len) == -EINVAL);
    tactus_stream_free(stream);
}

int main(int count, char **arguments) {
    tactus_client *client;
    tactus_title *title;
    tactus_file_info info;
    tactus_options options = {.data = 1 << 20, .spin_ns = 20000};
    tactus_completion completion;
    tactus_buffer buffer;

    if (count != 2)
        return 2;
    check(tactus_connect(arguments[1], &options, &client), "connect");
    check(tactus_open(client, "/one", &title), "open");
    check(tactus_info(title, &info), "info");
    printf("title %" PRIu64 " %" PRIu64 "\n", info.len, info.rate);
    printf("stat %d\n", tactus_stat(client, "/one", &info));
    int names = 0;
    printf("list %d\n", tactus_list(client, "/", print_name, &names));

    uint8_t *copy = malloc(info.len + 1);
    int64_t got = tactus_read_at(title, 0, copy, info.len + 1);
    check(got, "read_at");
    printf("copy %" PRId64 " %" PRIu64 "\n", got, sum_of(copy, got));
    free(copy);
    printf("wait %" PRIu64 "\n", sum_in_place(client, title, info.len, 0));
    printf("descriptor %" PRIu64 "\n", sum_in_place(client, title, info.len, 1));

    tactus_reserve_info room;
    check(tactus_reserve(title, 1000000, 0, 100, &room), "reserve");
    printf("reserve %" PRIu64 " %" PRIu64 "\n", room.ahead_ns, room.block);
    printf("no reserve %d: ", tactus_reserve(title, 0, 0, 100, &room) == -EINVAL);
    printf("%s\n", tactus_error());

    uint64_t when = tactus_now() + 5000000;
    check(tactus_buffer_new(client, 100, &buffer), "buffer");
    check(tactus_submit(client, title, 0, buffer, when, NULL), "submit");
    check(tactus_wait(client, -1, &completion), "wait");
    printf("timed %d\n", completion.at_ns >= when);
    tactus_buffer_free(client, completion.buffer);
    printf("nothing %d\n", tactus_wait(client, -1, &completion));

    // All of the data can be taken: nothing was lost.
    check(tactus_buffer_new(client, 1 << 20, &buffer), "buffer of all data");
    printf("full %d\n", tactus_buffer_new(client, 1, &buffer) == -ENOBUFS);
    tactus_title *missing;
    printf("missing %d: ", tactus_open(client, "/missing", &missing) == -ENOENT);
    printf("%s\n", tactus_error());
    printf("null %d\n", tactus_open(client, NULL, &missing) == -EINVAL);
    printf("room %d\n", tactus_room(client));
    stream_all(client, title, info.len);

    tactus_close(title);
    tactus_disconnect(client);
    return 0;
}
