// Writes a title of the server whose socket is named, in each way of the library, and changes
// names. The test knows what the server must have got.

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tactus.h>

static void check(int64_t result, const char *what) {
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", what, tactus_error());
        exit(1);
    }
}

static int64_t next(tactus_client *client) {
    tactus_completion completion;
    check(tactus_wait(client, -1, &completion), "wait");
    tactus_buffer_free(client, completion.buffer);
    return completion.result;
}

// A title at a rate: by copies and in place.
static void record(tactus_client *client) {
    tactus_recording *recording;
    tactus_recording_options chosen = {.rate = 1};
    tactus_recording_state state;
    uint8_t *space;
    printf("busy %d\n", tactus_record(client, "/one", &chosen, &recording) == -EBUSY);
    chosen.rate = 8000000;
    chosen.replace = 7;
    printf("bad %d\n", tactus_record(client, "/one", &chosen, &recording) == -EINVAL);
    chosen.replace = TACTUS_REPLACE_TITLES;
    check(tactus_record(client, "/one", &chosen, &recording), "record");
    check(tactus_recording_write(recording, "klm", 3), "write of a recording");
    int64_t room = tactus_recording_wait(recording, -1, &space);
    check(room, "wait of a recording");
    memcpy(space, "no", 2);
    check(tactus_recording_commit(recording, 2), "commit");
    printf("too much %d\n", tactus_recording_commit(recording, room + 1) == -EINVAL);
    check(tactus_recording_look(recording, &state), "look");
    printf("recorded %" PRIu64 "\n", state.len);
    check(tactus_recording_finish(recording), "finish");
    printf("null %d\n", tactus_recording_finish(NULL) == -EINVAL);
    tactus_recording_free(NULL);
}

int main(int count, char **arguments) {
    tactus_client *client;
    tactus_writer *writer;
    tactus_buffer buffer;
    tactus_write_options options = {.len = 10, .replace = TACTUS_REPLACE_NOTHING};

    if (count != 2)
        return 2;
    check(tactus_connect(arguments[1], NULL, &client), "connect");
    check(tactus_create(client, "/one", &options, &writer), "create");
    check(tactus_write_all(writer, "abc", 3), "write_all");
    check(tactus_write_all(writer, NULL, 0), "nothing");
    check(tactus_buffer_new(client, 100, &buffer), "buffer");
    memcpy(buffer.data, "defghij", 7);
    check(tactus_submit_write(client, writer, buffer, 7, NULL), "write");
    check(tactus_submit_sync(client, writer, NULL), "sync");
    check(tactus_submit_publish(client, writer, 7, NULL), "publish");
    printf("written %" PRId64 "\n", next(client));
    printf("synced %" PRId64 "\n", next(client));
    printf("published %" PRId64 "\n", next(client));
    tactus_abort(writer);
    tactus_abort(NULL);
    check(tactus_create(client, "/two", NULL, &writer), "create");
    check(tactus_publish(writer, 9), "publish");

    record(client);
    options.replace = 7;
    printf("bad %d\n", tactus_create(client, "/one", &options, &writer) == -EINVAL);
    printf("null %d\n", tactus_write_all(NULL, "a", 1) == -EINVAL);
    printf("missing %d\n", tactus_create(client, "/missing", NULL, &writer) == -ENOENT);
    check(tactus_remove(client, "/a"), "remove");
    check(tactus_make_directory(client, "/d"), "make_directory");
    check(tactus_remove_directory(client, "/d"), "remove_directory");
    check(tactus_rename(client, "/a", "/b", TACTUS_REPLACE_NOTHING), "rename");
    check(tactus_set_modified(client, "/b", 5), "set_modified");
    printf("room %d\n", tactus_room(client));
    tactus_disconnect(client);
    return 0;
}
