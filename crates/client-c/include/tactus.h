// Tactus for C programs on the same machine: titles through shared memory.
//
// Functions return 0 or a positive number for success, and a negative error number of errno.h;
// tactus_error() has the text. Made by cbindgen out of the library's source.

#ifndef TACTUS_H
#define TACTUS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// An older title with the name is replaced, if there is one.
#define TACTUS_REPLACE_TITLES 0

// The name must be free: -EEXIST.
#define TACTUS_REPLACE_NOTHING 1

// A title must have the name: -ENOENT.
#define TACTUS_REPLACE_EXISTING 2

// A connection to the server. It can be used by several threads at once.
typedef struct tactus_client tactus_client;

// A title that is built in memory. One thread at a time may use it.
typedef struct tactus_memory tactus_memory;

// A title that is written at a rate, through a ring of memory that the server shares. One thread
// at a time may use it.
typedef struct tactus_recording tactus_recording;

// A title that comes at a rate, into a ring of memory that the server shares. One thread at a time
// may use it.
typedef struct tactus_stream tactus_stream;

// An open title. It can be used by several threads at once.
typedef struct tactus_title tactus_title;

// A title that is written. It can be used by several threads at once; its requests are carried out
// in order.
typedef struct tactus_writer tactus_writer;

// What can be chosen for a connection.
typedef struct {
  // Bytes of data to share with the server: the room for all buffers. 0: 4 MiB.
  uint64_t data;
  // How long a call that waits looks for its answer before it sleeps, in nanoseconds. 0 sleeps
  // at once; 20000 is as long as the server looks for the next request.
  uint64_t spin_ns;
} tactus_options;

// Facts about a title or a directory.
typedef struct {
  // Length in bytes; 0 for a directory.
  uint64_t len;
  // When it was changed, in nanoseconds since 1970.
  int64_t modified_ns;
  // Its rate in bits per second; 0: not known.
  uint64_t rate;
  // Whether it is a directory.
  bool is_directory;
} tactus_file_info;

// Called for each name of a directory. Any value but 0 ends the list.
typedef int (*tactus_list_function)(void *user, const char *name, const tactus_file_info *info);

// A part of the memory that is shared with the server. It begins at a page. While a request is
// under way in it, the program must not touch it.
typedef struct {
  // The first byte.
  uint8_t *data;
  // The number of bytes.
  uint32_t len;
  // For the library.
  uint64_t pages;
} tactus_buffer;

// Reserved room for the reads of one title at moments.
typedef struct {
  // How far ahead of its moment a read has to be submitted, for each block that it lies in, in
  // nanoseconds. The request needs some time to the server: add a few milliseconds.
  uint64_t ahead_ns;
  // Bytes of a block.
  uint64_t block;
} tactus_reserve_info;

// A request that has ended.
typedef struct {
  // Which request it was.
  uint64_t token;
  // Its buffer, which belongs to the program again.
  tactus_buffer buffer;
  // The number of bytes at the beginning of the buffer that were read or written, less than
  // requested only for a read at the end of the title; or a negative error number.
  int64_t result;
  // When it took effect, in nanoseconds of CLOCK_MONOTONIC.
  uint64_t at_ns;
} tactus_completion;

// The memory of a title.
typedef struct {
  // The first byte of the title. It never moves.
  uint8_t *data;
  // The number of bytes that are there.
  uint64_t len;
  // The number of bytes that are final: they must not be changed.
  uint64_t written_back;
  // The most bytes that the memory can ever have.
  uint64_t limit;
} tactus_memory_view;

// What can be chosen for a stream.
typedef struct {
  // The first byte of the title.
  uint64_t first;
  // Bits per second; 0: the title's own rate, which may vary with its content.
  uint64_t rate;
  // Bytes that come at once at the beginning, if the rate is constant.
  uint64_t burst;
  // Bytes of the ring: how far the program may be behind. 0: the burst and half a second, at
  // least 256 KiB.
  uint64_t room;
} tactus_stream_options;

// What can be chosen for a title that is written.
typedef struct {
  // Its length in bytes, for which space and quota are claimed at the beginning; a negative
  // number: not known.
  int64_t len;
  // TACTUS_REPLACE_TITLES, _NOTHING or _EXISTING.
  int replace;
} tactus_write_options;

// What can be chosen for a recording.
typedef struct {
  // The most bits per second that the program writes.
  uint64_t rate;
  // TACTUS_REPLACE_TITLES, _NOTHING or _EXISTING.
  int replace;
  // Bytes of the ring: how far the server may be behind. 0: half a second, at least 256 KiB.
  uint64_t room;
} tactus_recording_options;

// How a recording gets on.
typedef struct {
  // Bytes handed over.
  uint64_t len;
  // Bytes, from the first one on, that a power failure does not take any more.
  uint64_t durable;
  // How often the program was faster than its rate: the ring was full when the server came.
  uint64_t overruns;
  // How often the program was slower than its rate.
  uint64_t underruns;
} tactus_recording_state;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Connects to the server at the Unix socket `path`. `options` may be null.
//
// Returns 0 or a negative error number.
//
// # Safety
// `path` is a string; `options` is null or valid; `client` is valid for writing.
int tactus_connect(const char *path, const tactus_options *options, tactus_client **client);

// Gives up a connection. It ends when its titles are closed as well, which stay usable; its
// buffers must not be touched any more. Null is ignored.
//
// # Safety
// `client` is from tactus_connect() and not used afterwards.
void tactus_disconnect(tactus_client *client);

// The text of the last error of this thread: valid until its next error. Never null.
const char *tactus_error(void);

// Opens a title for reading, by its path as in HTTP: "/films/one.ts".
//
// Returns 0 or a negative error number.
//
// # Safety
// `client` is valid; `path` is a string; `title` is valid for writing.
int tactus_open(const tactus_client *client, const char *path, tactus_title **title);

// Closes a title, when the reads of it that are under way have ended; does not wait for them. Null
// is ignored.
//
// # Safety
// `title` is from tactus_open() and not used afterwards.
void tactus_close(tactus_title *title);

// The facts about an open title, as they were when it was opened.
//
// # Safety
// `title` is valid; `info` is valid for writing.
int tactus_info(const tactus_title *title, tactus_file_info *info);

// The facts about a title or a directory, by its path.
//
// # Safety
// `client` is valid; `path` is a string; `info` is valid for writing.
int tactus_stat(const tactus_client *client, const char *path, tactus_file_info *info);

// Calls `function` for each name of a directory, in order. Names of directories end with a slash.
//
// Returns 0, the value other than 0 that `function` has returned, or a negative error number.
//
// # Safety
// `client` is valid; `directory` is a string.
int tactus_list(const tactus_client *client,
                const char *directory,
                tactus_list_function function,
                void *user);

// Reads bytes into memory of the program, and waits for them.
//
// Returns the number of bytes, less than `len` only at the end of the title; or a negative error
// number.
//
// # Safety
// `title` is valid; `into` is valid for writing `len` bytes.
int64_t tactus_read_at(const tactus_title *title, uint64_t offset, void *into, size_t len);

// Takes a buffer of `len` bytes, at least one, out of the shared data.
//
// Returns 0, -ENOBUFS if the data have no free range of this length, or another negative error
// number.
//
// # Safety
// `client` is valid; `buffer` is valid for writing.
int tactus_buffer_new(const tactus_client *client, size_t len, tactus_buffer *buffer);

// Returns a buffer to the shared data.
//
// # Safety
// `client` is valid; `buffer` is a buffer of it that belongs to the program, and is not used
// afterwards.
void tactus_buffer_free(const tactus_client *client, tactus_buffer buffer);

// Reserves room for reads of a title at moments: `interval_ns` between two of them in the mean,
// each at most `tolerance_ns` earlier than that allows, of at most `len` bytes. From then on,
// until the title is closed, the moment of each read is kept, or its completion has an error at
// once: -ETIME if the moment is nearer than `ahead_ns` for each block that the read lies in,
// -EBUSY if the moments are closer than reserved, -EMSGSIZE if the read is longer.
//
// Returns 0 or a negative error number: -EBUSY or -ENOSPC if the server has no room, -EMSGSIZE if
// `len` is more than a block, -EEXIST if the title has a reserve, -EINVAL for an interval that
// cannot be or a title that grows.
//
// # Safety
// `title` is valid; `reserve` is valid for writing.
int tactus_reserve(const tactus_title *title,
                   uint64_t interval_ns,
                   uint64_t tolerance_ns,
                   uint32_t len,
                   tactus_reserve_info *reserve);

// Submits a read of as many bytes as the buffer has. It takes effect at `when_ns` of
// CLOCK_MONOTONIC, not before; 0: at once. With tactus_reserve() the moment is kept or the read is
// refused; without it the read takes effect as soon as possible after the moment. `token` may be
// null.
//
// Returns 0 or a negative error number: -EAGAIN if as many reads are under way as may be,
// -ECONNRESET if the server has gone. In each case the buffer belongs to the library: after
// success until its completion, after an error it is returned to the shared data.
//
// # Safety
// `client` and `title` are valid; `buffer` is a buffer of this client that belongs to the program;
// `token` is null or valid for writing.
int tactus_submit(const tactus_client *client,
                  const tactus_title *title,
                  uint64_t offset,
                  tactus_buffer buffer,
                  uint64_t when_ns,
                  uint64_t *token);

// Number of requests that can be submitted now.
//
// # Safety
// `client` is valid.
int tactus_room(const tactus_client *client);

// The next completion of a request, if there is one. Never waits.
//
// Returns 1 with a completion, 0 without.
//
// # Safety
// `client` is valid; `completion` is valid for writing.
int tactus_poll(const tactus_client *client, tactus_completion *completion);

// Waits for the next completion of a request, for `timeout_ns` nanoseconds at most; a negative
// number is no limit.
//
// Returns 1 with a completion; 0 if the time is over or no request is under way; or a negative
// error number. That the server has gone is the result of each completion.
//
// # Safety
// `client` is valid; `completion` is valid for writing.
int tactus_wait(const tactus_client *client, int64_t timeout_ns, tactus_completion *completion);

// The descriptor for an event loop. It must not be read or closed.
//
// | step | call |
// |---|---|
// | 1 | take completions by tactus_poll() until there is none |
// | 2 | tactus_arm(); if it returns 0, back to step 1 |
// | 3 | wait until the descriptor is readable |
// | 4 | tactus_disarm(), then step 1 |
//
// # Safety
// `client` is valid.
int tactus_fd(const tactus_client *client);

// Prepares to wait for the descriptor.
//
// Returns 1 if the descriptor can be waited for, 0 if there is a completion already, -ECONNRESET
// if the server has gone and all completions were taken.
//
// # Safety
// `client` is valid.
int tactus_arm(const tactus_client *client);

// Ends the wait for the descriptor.
//
// # Safety
// `client` is valid.
void tactus_disarm(const tactus_client *client);

// Now, in nanoseconds of CLOCK_MONOTONIC.
uint64_t tactus_now(void);

// Begins to build the title `path` in memory, without bytes at first. It has no name before
// tactus_memory_publish(). `replace` is TACTUS_REPLACE_TITLES, _NOTHING or _EXISTING.
//
// Returns 0 or a negative error number, as tactus_create().
//
// # Safety
// `client` is valid; `path` is a string; `memory` is valid for writing.
int tactus_memory_create(const tactus_client *client,
                         const char *path,
                         int replace,
                         tactus_memory **memory);

// Begins to build the next version of the title `path` in memory: the memory begins with the bytes
// that the title has now.
//
// Returns 0 or a negative error number, as tactus_create(); -ENOMEM if the memory for titles of
// programs is in use.
//
// # Safety
// `client` is valid; `path` is a string; `memory` is valid for writing.
int tactus_memory_edit(const tactus_client *client, const char *path, tactus_memory **memory);

// Goes on to build the title `path` as far as it was synced before this program, the server or the
// machine has ended. `upload` is what tactus_memory_upload() has said.
//
// Returns 0 or a negative error number, as tactus_memory_edit(); -ENOENT if there is no such
// upload of this title, or it has expired; -EALREADY if it was published.
//
// # Safety
// `client` is valid; `path` and `upload` are strings; `memory` is valid for writing.
int tactus_memory_resume(const tactus_client *client,
                         const char *path,
                         const char *upload,
                         tactus_memory **memory);

// The memory of the title as it is now.
//
// # Safety
// `memory` is valid; `info` is valid for writing.
int tactus_memory_info(const tactus_memory *memory, tactus_memory_view *info);

// What the title is continued by after a crash, if it was synced: tactus_memory_resume(), or
// "/api/v1/uploads/UPLOAD" over HTTP. Writes at most `size` bytes with the final zero.
//
// Returns the number of bytes without the final zero, or a negative error number: -ERANGE if
// `size` is too small.
//
// # Safety
// `memory` is valid; `text` is valid for writing `size` bytes.
int tactus_memory_upload(const tactus_memory *memory, char *text, size_t size);

// Has memory for at least `len` bytes from now on, new ones zero, and quota and space for a title
// of this length.
//
// Returns 0 or a negative error number: -ENOMEM if the memory for titles of programs is in use,
// -EDQUOT, -ENOSPC, -EFBIG. The title has the room that it had before then.
//
// # Safety
// `memory` is valid.
int tactus_memory_grow(tactus_memory *memory, uint64_t len);

// Makes the first `end` bytes final, and waits until the server has taken them.
//
// Returns 0 or a negative error number: -EINVAL if there are not so many bytes, or more are final
// already. After another error the title cannot be completed.
//
// # Safety
// `memory` is valid.
int tactus_memory_write_back(tactus_memory *memory, uint64_t end);

// The same, and waits until they are on stable storage: they outlive a crash of this program, of
// the server and of the machine.
//
// Returns 0 or a negative error number.
//
// # Safety
// `memory` is valid.
int tactus_memory_sync(tactus_memory *memory, uint64_t end);

// Makes a title of the first `len` bytes, and waits until its bytes and its name are on stable
// storage. `modified_ns` is its modification time in nanoseconds since 1970; 0: now. The memory
// ends in each case.
//
// Returns 0 or a negative error number: as tactus_create(), and -ESTALE for the next version of a
// title of which there is another version by now.
//
// # Safety
// `memory` is from tactus_memory_create(), _edit() or _resume() and not used afterwards.
int tactus_memory_publish(tactus_memory *memory, uint64_t len, int64_t modified_ns);

// Closes the memory. The synced part of the title remains as an open upload. A null pointer is
// ignored.
//
// # Safety
// `memory` is from tactus_memory_create(), _edit() or _resume() and not used afterwards.
void tactus_memory_close(tactus_memory *memory);

// Closes the memory and deletes the title, the synced part included. Its disk space is free when
// this returns. A null pointer is ignored.
//
// # Safety
// `memory` is from tactus_memory_create(), _edit() or _resume() and not used afterwards.
void tactus_memory_abort(tactus_memory *memory);

// Has a title sent at a rate. `options` may be null: from the beginning at its own rate.
//
// Returns 0 or a negative error number: -EBUSY if the server has no room for such a stream,
// -ENOSPC if it has no memory for it; tactus_error() names the resource.
//
// # Safety
// `client` and `title` are valid; `options` is null or valid; `stream` is valid for writing.
int tactus_stream_new(const tactus_client *client,
                      const tactus_title *title,
                      const tactus_stream_options *options,
                      tactus_stream **stream);

// Ends a stream. Its chunks must not be touched any more. Null is ignored.
//
// # Safety
// `stream` is from tactus_stream_new() and not used afterwards.
void tactus_stream_free(tactus_stream *stream);

// The rate in bits per second; the highest one if it varies with the content. 0 for null.
//
// # Safety
// `stream` is null or valid.
uint64_t tactus_stream_rate(const tactus_stream *stream);

// The byte of the title that comes next to the program. 0 for null.
//
// # Safety
// `stream` is null or valid.
uint64_t tactus_stream_position(const tactus_stream *stream);

// Whether the program has consumed the title to its end.
//
// # Safety
// `stream` is null or valid.
bool tactus_stream_at_end(const tactus_stream *stream);

// Waits until bytes have come, for `timeout_ns` nanoseconds at most; 0 does not wait, a negative
// number is no limit. The bytes lie in the ring, behind each other from `*bytes` on. They stay
// until they are consumed; a later call returns them again, with those that have come since.
//
// Returns the number of bytes; 0 if none has come, or the title is at its end; or a negative error
// number that says why the stream has ended early, when all bytes that have come are consumed.
//
// # Safety
// `stream` is valid; `bytes` is valid for writing.
int64_t tactus_stream_wait(tactus_stream *stream, int64_t timeout_ns, const uint8_t **bytes);

// Gives the next `len` bytes back: the server may write there.
//
// Returns 0, or -EINVAL if they are more than the last tactus_stream_wait() has returned.
//
// # Safety
// `stream` is valid.
int tactus_stream_consume(tactus_stream *stream, size_t len);

// Copies the next bytes, as many as have come and `len` at most, and consumes them. Waits for at
// least one.
//
// Returns the number of bytes, which is 0 only at the end of the title or if `len` is 0; or a
// negative error number.
//
// # Safety
// `stream` is valid; `into` is valid for writing `len` bytes.
int64_t tactus_stream_read(tactus_stream *stream, void *into, size_t len);

// Goes on at another byte of the title, at once. Bytes of the old place are dropped.
//
// Returns 0; -EINVAL if the byte is behind the end, and the stream goes on where it is; or another
// negative error number, and the stream has ended.
//
// # Safety
// `stream` is valid.
int tactus_stream_seek(tactus_stream *stream, uint64_t to);

// Begins to write the title `path`, which has no name before tactus_publish(). `options` may be
// null: the length is not known, and an older title is replaced.
//
// Returns 0 or a negative error number: -EACCES if this user may not write, -EEXIST or -ENOENT as
// `options` say, -EISDIR, -EBUSY if another client has locked the name, -ENOSPC, -EDQUOT, -EFBIG,
// -EROFS if the volume takes no titles, -EMFILE.
//
// # Safety
// `client` is valid; `path` is a string; `options` is null or valid; `writer` is valid for
// writing.
int tactus_create(const tactus_client *client,
                  const char *path,
                  const tactus_write_options *options,
                  tactus_writer **writer);

// Appends bytes, and waits until the server has them in its own memory.
//
// Returns 0 or a negative error number. After an error the title cannot be completed.
//
// # Safety
// `writer` is valid; `bytes` is valid for reading `len` bytes.
int tactus_write_all(const tactus_writer *writer, const void *bytes, size_t len);

// Waits until all bytes so far are on stable storage. They are no title before tactus_publish().
//
// Returns 0 or a negative error number.
//
// # Safety
// `writer` is valid.
int tactus_sync(const tactus_writer *writer);

// Makes a title of all bytes, and waits until its bytes and its name are on stable storage.
// `modified_ns` is its modification time in nanoseconds since 1970; 0: now. The writer ends in
// each case.
//
// Returns 0 or a negative error number: as tactus_create(), and -ENODATA if the title has fewer
// bytes than its length.
//
// # Safety
// `writer` is from tactus_create() and not used afterwards.
int tactus_publish(tactus_writer *writer, int64_t modified_ns);

// Ends a writer and drops an unpublished title. Its space is free when this returns.
// Null is ignored.
//
// # Safety
// `writer` is from tactus_create() and not used afterwards.
void tactus_abort(tactus_writer *writer);

// Submits a write of the first `len` bytes of the buffer. Its completion comes from tactus_wait()
// or tactus_poll(), when the server has the bytes. `token` may be null.
//
// Returns 0 or a negative error number, as tactus_submit(). In each case the buffer belongs to the
// library.
//
// # Safety
// `client` and `writer` are valid; `buffer` is a buffer of this client that belongs to the
// program; `token` is null or valid for writing.
int tactus_submit_write(const tactus_client *client,
                        const tactus_writer *writer,
                        tactus_buffer buffer,
                        uint32_t len,
                        uint64_t *token);

// Submits a request as tactus_sync(). Its completion has an empty buffer, which must be freed like
// every other one. `token` may be null.
//
// # Safety
// As tactus_submit_write().
int tactus_submit_sync(const tactus_client *client, const tactus_writer *writer, uint64_t *token);

// Submits a request as tactus_publish(), which leaves the writer: end it with tactus_abort() after
// the completion. `token` may be null.
//
// # Safety
// As tactus_submit_write().
int tactus_submit_publish(const tactus_client *client,
                          const tactus_writer *writer,
                          int64_t modified_ns,
                          uint64_t *token);

// Removes a title. Like all changes of names it is on stable storage when the call returns.
//
// Returns 0 or a negative error number: -ENOENT, -EISDIR, or as tactus_create().
//
// # Safety
// `client` is valid; `path` is a string.
int tactus_remove(const tactus_client *client, const char *path);

// Makes a directory in one that exists.
//
// Returns 0 or a negative error number: -EEXIST, -ENOTDIR, or as tactus_create().
//
// # Safety
// `client` is valid; `path` is a string.
int tactus_make_directory(const tactus_client *client, const char *path);

// Removes an empty directory.
//
// Returns 0 or a negative error number: -ENOENT, -ENOTDIR, -ENOTEMPTY, or as tactus_create().
//
// # Safety
// `client` is valid; `path` is a string.
int tactus_remove_directory(const tactus_client *client, const char *path);

// Gives a title or a directory another name on the same volume. `replace` is
// TACTUS_REPLACE_TITLES, for a title that replaces another one, or TACTUS_REPLACE_NOTHING.
//
// Returns 0 or a negative error number: -ENOENT, -EEXIST, -EXDEV, -EISDIR, or as tactus_create().
//
// # Safety
// `client` is valid; `from` and `to` are strings.
int tactus_rename(const tactus_client *client, const char *from, const char *to, int replace);

// Sets the modification time of a title or a directory, in nanoseconds since 1970.
//
// Returns 0 or a negative error number: -ENOENT, -EINVAL, or as tactus_create().
//
// # Safety
// `client` is valid; `path` is a string.
int tactus_set_modified(const tactus_client *client, const char *path, int64_t modified_ns);

// Begins to write the title `path` at a rate.
//
// Returns 0 or a negative error number: -EBUSY if the server has no disk time for such a
// recording, -ENOSPC if it has no memory for it; tactus_error() names the resource. -EINVAL for a
// rate or room that cannot be, or as tactus_create().
//
// # Safety
// `client` and `options` are valid; `path` is a string; `recording` is valid for writing.
int tactus_record(const tactus_client *client,
                  const char *path,
                  const tactus_recording_options *options,
                  tactus_recording **recording);

// Waits until bytes are free in the ring, for `timeout_ns` nanoseconds at most; 0 does not wait, a
// negative number is no limit. They lie behind each other from `*bytes` on, for the program to
// fill, until tactus_recording_commit() hands them over; a later call returns them again.
//
// Returns the number of bytes; 0 if none is free; or a negative error number (-ENOSPC, -EDQUOT,
// -EIO) if the recording has ended early. The bytes that the server took before are a title.
//
// # Safety
// `recording` is valid; `bytes` is valid for writing.
int64_t tactus_recording_wait(tactus_recording *recording, int64_t timeout_ns, uint8_t **bytes);

// Hands the first `len` bytes of tactus_recording_wait() over.
//
// Returns 0, or -EINVAL if they are more than were free.
//
// # Safety
// `recording` is valid.
int tactus_recording_commit(tactus_recording *recording, size_t len);

// Copies bytes into the ring and hands them over. Waits for room: a program that is faster than
// its rate is held to it.
//
// Returns 0 or a negative error number, as tactus_recording_wait().
//
// # Safety
// `recording` is valid; `bytes` is valid for reading `len` bytes.
int tactus_recording_write(tactus_recording *recording, const void *bytes, size_t len);

// How a recording gets on.
//
// Returns 0, or -EINVAL for null.
//
// # Safety
// `recording` is null or valid; `state` is null or valid for writing.
int tactus_recording_look(const tactus_recording *recording, tactus_recording_state *state);

// Makes a title of all bytes, and waits until its bytes and its name are on stable storage. The
// recording ends in each case.
//
// Returns 0 or a negative error number: as tactus_recording_wait(), and -ENODATA if no byte was
// handed over: then there is no title.
//
// # Safety
// `recording` is from tactus_record() and not used afterwards.
int tactus_recording_finish(tactus_recording *recording);

// Closes a recording without waiting for its end. The server makes a title of the bytes that were
// handed over. A null pointer is ignored.
//
// # Safety
// `recording` is from tactus_record() and not used afterwards.
void tactus_recording_free(tactus_recording *recording);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TACTUS_H */
