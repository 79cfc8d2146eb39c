/* Many readers at the end of a log: each has a connection to 127.0.0.1, and one Fetch that waits on it.
 *
 *     tailgen PORT TEMPLATES COUNT OFFSET_AT HIGH_WATERMARK_AT
 *
 * TEMPLATES holds COUNT requests of one size, each with its length in front: Fetch v18 of one partition. At
 * OFFSET_AT are the offset and the epoch of the record before it, which follow what has come; at
 * HIGH_WATERMARK_AT, unless that is -1, the high watermark that the reader knows.
 *
 * Prints "ready" when all have sent their first request, ends with its standard input, and then prints one
 * line of JSON: responses, bytes, and errors, by which a reader gives up. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* Where a response has these, behind its length. Its array of aborted transactions is empty. */
enum { ERROR_AT = 9, PARTITION_ERROR_AT = 37, HIGH_WATERMARK_AT = 39, RECORDS_AT = 68 };
enum { BATCH_HEAD_BYTES = 27, READ_BYTES = 1 << 16 };

struct reader {
    int socket;
    uint8_t *request, *in;
    size_t used, room;
};

static size_t request_bytes, offset_at;
static long high_watermark_at;
static unsigned long long responses, bytes, errors;

static void fail(const char *what) {
    fprintf(stderr, "tailgen: %s: %s\n", what, strerror(errno));
    exit(2);
}

static uint64_t number_at(const uint8_t *at, int size) {
    uint64_t value = 0;
    while (size--) value = value << 8 | *at++;
    return value;
}

static void give_up(struct reader *reader) {
    errors++;
    close(reader->socket);
    reader->socket = -1;
}

static void ask(struct reader *reader) {
    ssize_t sent = send(reader->socket, reader->request, request_bytes, MSG_NOSIGNAL);
    if (sent != (ssize_t)request_bytes) give_up(reader); /* a lone small request always fits */
}

/* Follows the batches to the offset behind the last whole one. */
static void follow(struct reader *reader, const uint8_t *at, const uint8_t *end) {
    uint64_t size = 0;
    int shift = 0;
    do size |= (uint64_t)(*at & 127) << shift, shift += 7;
    while (at < end && *at++ & 128);
    if (size && at + size - 1 < end) end = at + size - 1;
    while (end - at >= BATCH_HEAD_BYTES) {
        uint64_t whole = 12 + number_at(at + 8, 4);
        if ((uint64_t)(end - at) < whole) break;
        uint64_t next = number_at(at, 8) + number_at(at + 23, 4) + 1;
        for (int byte = 0; byte < 8; byte++)
            reader->request[offset_at + (size_t)byte] = (uint8_t)(next >> (56 - 8 * byte));
        memcpy(reader->request + offset_at + 8, at + 12, 4);
        at += whole;
    }
}

static void take_response(struct reader *reader, const uint8_t *response, size_t length) {
    responses++;
    bytes += length;
    if (length <= RECORDS_AT || number_at(response + ERROR_AT, 2) ||
        number_at(response + PARTITION_ERROR_AT, 2)) {
        if (!errors && length > RECORDS_AT)
            fprintf(stderr, "tailgen: refused with error %d, partition %d\n",
                    (int)number_at(response + ERROR_AT, 2),
                    (int)number_at(response + PARTITION_ERROR_AT, 2));
        return give_up(reader);
    }
    if (high_watermark_at >= 0)
        memcpy(reader->request + high_watermark_at, response + HIGH_WATERMARK_AT, 8);
    follow(reader, response + RECORDS_AT, response + length);
    ask(reader);
}

static void receive(struct reader *reader) {
    if (reader->room - reader->used < READ_BYTES) {
        reader->room = 2 * reader->room + READ_BYTES;
        reader->in = realloc(reader->in, reader->room);
        if (!reader->in) fail("memory");
    }
    ssize_t count = recv(reader->socket, reader->in + reader->used, READ_BYTES, MSG_DONTWAIT);
    if (count <= 0) {
        if (count < 0 && errno == EAGAIN) return;
        return give_up(reader);
    }
    reader->used += (size_t)count;
    while (reader->socket >= 0 && reader->used >= 4) {
        size_t length = number_at(reader->in, 4);
        if (reader->used < 4 + length) break;
        take_response(reader, reader->in + 4, length);
        reader->used -= 4 + length;
        memmove(reader->in, reader->in + 4 + length, reader->used);
    }
    if (!reader->used) {
        free(reader->in);
        reader->in = NULL;
        reader->room = 0;
    }
}

static int connect_to(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int on = 1, found = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (found < 0 || connect(found, (struct sockaddr *)&address, sizeof address)) fail("connect");
    setsockopt(found, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return found;
}

int main(int count, char **words) {
    if (count != 6) fail("PORT TEMPLATES COUNT OFFSET_AT HIGH_WATERMARK_AT");
    int readers_count = atoi(words[3]), epoll = epoll_create1(EPOLL_CLOEXEC);
    offset_at = (size_t)atol(words[4]);
    high_watermark_at = atol(words[5]);
    FILE *file = fopen(words[2], "rb");
    if (!file || fseek(file, 0, SEEK_END)) fail(words[2]);
    request_bytes = (size_t)ftell(file) / (size_t)readers_count;
    rewind(file);
    struct reader *readers = calloc((size_t)readers_count, sizeof *readers);
    struct epoll_event event = {.events = EPOLLIN};
    for (int i = 0; i < readers_count; i++) {
        readers[i].request = malloc(request_bytes);
        if (fread(readers[i].request, request_bytes, 1, file) != 1) fail(words[2]);
        readers[i].socket = connect_to(atoi(words[1]));
        event.data.u32 = (uint32_t)i;
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, readers[i].socket, &event)) fail("epoll_ctl");
        ask(&readers[i]);
    }
    event.data.u32 = UINT32_MAX;
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, STDIN_FILENO, &event)) fail("standard input");
    printf("ready\n");
    fflush(stdout);
    for (bool goes_on = true; goes_on;) {
        struct epoll_event events[256];
        int found = epoll_wait(epoll, events, 256, -1);
        for (int i = 0; i < found; i++) {
            if (events[i].data.u32 == UINT32_MAX) goes_on = false;
            else if (readers[events[i].data.u32].socket >= 0) receive(&readers[events[i].data.u32]);
        }
    }
    printf("{\"responses\": %llu, \"bytes\": %llu, \"errors\": %llu}\n", responses, bytes, errors);
    return 0;
}
