// Builds titles in memory of the server whose socket is named. The test knows what the server must
// have got.

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

int main(int count, char **arguments) {
    tactus_client *client;
    tactus_memory *memory;
    tactus_memory_view info, before;
    char upload[40];

    if (count != 2)
        return 2;
    check(tactus_connect(arguments[1], NULL, &client), "connect");
    check(tactus_memory_create(client, "/one", TACTUS_REPLACE_NOTHING, &memory), "create");
    check(tactus_memory_info(memory, &before), "info");
    check(tactus_memory_grow(memory, 10), "grow");
    check(tactus_memory_info(memory, &info), "info");
    printf("grown %" PRIu64 " of %" PRIu64 ", moved %d\n", info.len, info.limit,
           info.data != before.data);
    memcpy(info.data, "abcdefghij", 10);
    check(tactus_memory_write_back(memory, 3), "write_back");
    check(tactus_memory_sync(memory, 5), "sync");
    check(tactus_memory_info(memory, &info), "info");
    printf("final %" PRIu64 "\n", info.written_back);
    printf("upload %d %s\n", tactus_memory_upload(memory, upload, sizeof upload), upload);
    printf("small %d\n", tactus_memory_upload(memory, upload, 9) == -ERANGE);
    printf("final already %d\n", tactus_memory_write_back(memory, 4) == -EINVAL);
    printf("too long %d\n", tactus_memory_grow(memory, info.limit + 1) == -ENOMEM);
    check(tactus_memory_publish(memory, 9, 7), "publish");
    check(tactus_memory_edit(client, "/one", &memory), "edit");
    check(tactus_memory_info(memory, &info), "info");
    printf("%.*s\n", (int)info.len, (char *)info.data);
    tactus_memory_close(memory);
    check(tactus_memory_edit(client, "/one", &memory), "edit");
    tactus_memory_abort(memory);
    check(tactus_memory_resume(client, "/one", upload, &memory), "resume");
    check(tactus_memory_info(memory, &info), "info");
    printf("%.*s, final %" PRIu64 "\n", (int)info.len, (char *)info.data, info.written_back);
    tactus_memory_abort(memory);
    tactus_memory_close(NULL);
    tactus_memory_abort(NULL);
    printf("null %d\n", tactus_memory_grow(NULL, 1) == -EINVAL);
    printf("bad %d\n", tactus_memory_create(client, "/one", 7, &memory) == -EINVAL);
    tactus_disconnect(client);
    return 0;
}
