/* What the generators of load share: bytes, Produce requests, latencies, processor time. One thread. */
#ifndef LOAD_H
#define LOAD_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define NODES_MAX 16
#define MS 1000000ull
#define SECOND 1000000000ull

static inline void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, what);
    exit(2);
}

static inline uint64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

/* ---- bytes ------------------------------------------------------------------------------------ */

struct bytes {
    uint8_t *start;
    size_t used, room;
};

static inline uint8_t *extend(struct bytes *to, size_t count) {
    if (to->used + count > to->room) {
        to->room = 2 * (to->used + count) + 512;
        to->start = realloc(to->start, to->room);
        if (!to->start) fail("out of memory");
    }
    to->used += count;
    return to->start + to->used - count;
}

static inline void put_number(struct bytes *to, int64_t value, int size) {
    uint8_t *at = extend(to, (size_t)size);
    for (int i = size - 1; i >= 0; i--, value >>= 8) at[i] = (uint8_t)value;
}

static inline void put_varint(struct bytes *to, int64_t value) {
    uint64_t left = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    for (; left > 127; left >>= 7) *extend(to, 1) = (uint8_t)(left | 128);
    *extend(to, 1) = (uint8_t)left;
}

/* Bytes behind their number as a varint. */
static inline void put_sized(struct bytes *to, const void *from, size_t count) {
    put_varint(to, (int64_t)count);
    if (count) memcpy(extend(to, count), from, count);
}

static inline void put_text(struct bytes *to, const char *text) {
    size_t length = strlen(text);
    put_number(to, (int64_t)length, 2);
    memcpy(extend(to, length), text, length);
}

static inline void set32(uint8_t *at, uint32_t value) {
    for (int i = 3; i >= 0; i--, value >>= 8) at[i] = (uint8_t)value;
}

static inline uint32_t get32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline uint32_t crc32c(const uint8_t *at, size_t count) {
    static uint32_t table[256];
    if (!table[1])
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t rest = i;
            for (int bit = 0; bit < 8; bit++) rest = rest & 1 ? rest >> 1 ^ 0x82f63b78u : rest >> 1;
            table[i] = rest;
        }
    uint32_t crc = ~0u;
    while (count--) crc = table[(crc ^ *at++) & 255] ^ crc >> 8;
    return ~crc;
}

static inline uint8_t noise(void) {
    static uint32_t state = 2463534242u; /* the same records in every run */
    state = state * 1664525u + 1013904223u;
    return (uint8_t)(state >> 24);
}

/* ---- Produce ---------------------------------------------------------------------------------- */

enum { CORRELATION_AT = 8 };

/* The part of a record batch that its checksum covers, up to its records. */
static inline struct bytes batch_head(int records) {
    struct bytes body = {0};
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t now_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    put_number(&body, 0, 2); /* attributes: uncompressed, create time */
    put_number(&body, records - 1, 4);
    put_number(&body, now_ms, 8);
    put_number(&body, now_ms, 8);
    put_number(&body, -1, 8); /* no producer id, epoch, sequence */
    put_number(&body, -1, 2);
    put_number(&body, -1, 4);
    put_number(&body, records, 4);
    return body;
}

/* A record with a key, a value and, unless its name is NULL, one header. */
static inline void put_record(struct bytes *body, int index, const char *key, const struct bytes *value,
                              const char *header, const char *header_value) {
    static struct bytes record;
    record.used = 0;
    *extend(&record, 1) = 0;
    put_varint(&record, 0);
    put_varint(&record, index);
    put_sized(&record, key, strlen(key));
    put_sized(&record, value->start, value->used);
    put_varint(&record, header ? 1 : 0);
    if (header) {
        put_sized(&record, header, strlen(header));
        put_sized(&record, header_value, strlen(header_value));
    }
    put_sized(body, record.start, record.used);
}

/* A Produce request with one batch, of which `body` is the part that its checksum covers. */
static inline void put_produce(struct bytes *to, int version, const char *topic, const struct bytes *body) {
    put_number(to, 0, 4); /* length */
    put_number(to, version, 4); /* Produce has the number 0 */
    put_number(to, 0, 4); /* correlation id: set in each round */
    put_text(to, program_invocation_short_name);
    put_number(to, -1, 2); /* no transaction */
    put_number(to, -1, 2); /* acks: all */
    put_number(to, 30000, 4);
    put_number(to, 1, 4);
    put_text(to, topic);
    put_number(to, 1, 4);
    put_number(to, 0, 4);
    put_number(to, (int64_t)body->used + 21, 4);
    put_number(to, 0, 8); /* base offset */
    put_number(to, (int64_t)body->used + 9, 4);
    put_number(to, -1, 4); /* epoch */
    put_number(to, 2, 1);  /* magic */
    put_number(to, crc32c(body->start, body->used), 4);
    memcpy(extend(to, body->used), body->start, body->used);
    set32(to->start, (uint32_t)to->used - 4);
}

/* Of the error of the first partition in a response, behind its length. */
static inline size_t produce_error_at(const char *topic) {
    return 4 + 4 + 2 + strlen(topic) + 4 + 4;
}

/* ---- latencies -------------------------------------------------------------------------------- */

enum { STEP_BITS = 7, STEPS = 1 << STEP_BITS, BUCKETS = (40 - STEP_BITS + 2) * STEPS };

static uint64_t histogram[BUCKETS], measured, longest_ns;
static double latency_sum_ns;

static inline unsigned bucket_of(uint64_t ns) {
    uint64_t value = ns / 100;
    if (value >> 40) return BUCKETS - 1;
    if (value < 2 * STEPS) return (unsigned)value;
    int shift = 63 - __builtin_clzll(value) - STEP_BITS;
    return (unsigned)((value >> shift) + (uint64_t)shift * STEPS);
}

static inline double bucket_middle_ms(unsigned bucket) {
    if (bucket < 2 * STEPS) return (bucket + 0.5) / 1e4;
    unsigned shift = bucket / STEPS - 1;
    return (double)(bucket % STEPS + STEPS + 0.5) * (double)(1ull << shift) / 1e4;
}

static inline void record_latency(uint64_t ns) {
    histogram[bucket_of(ns)]++;
    measured++;
    latency_sum_ns += (double)ns;
    if (ns > longest_ns) longest_ns = ns;
}

static inline double quantile_ms(double share) {
    uint64_t rank = (uint64_t)(share * (double)measured), seen = 0;
    for (unsigned bucket = 0; bucket < BUCKETS; bucket++)
        if ((seen += histogram[bucket]) > rank) return bucket_middle_ms(bucket);
    return (double)longest_ns / 1e6;
}

/* ---- processor time --------------------------------------------------------------------------- */

struct usage {
    double client_s, servers_s, machine_s, stolen_s;
};

static inline struct usage read_usage(const int *pids, int pid_count) {
    struct usage usage = {0};
    struct rusage own;
    double ticks = (double)sysconf(_SC_CLK_TCK);
    getrusage(RUSAGE_SELF, &own);
    usage.client_s = (double)(own.ru_utime.tv_sec + own.ru_stime.tv_sec) +
                     (double)(own.ru_utime.tv_usec + own.ru_stime.tv_usec) / 1e6;
    for (int i = 0; i < pid_count; i++) {
        char path[64], text[2048] = "";
        snprintf(path, sizeof path, "/proc/%d/stat", pids[i]);
        FILE *file = fopen(path, "r");
        if (!file) continue;
        size_t count = fread(text, 1, sizeof text - 1, file);
        fclose(file);
        text[count] = 0;
        char *rest = strrchr(text, ')');
        unsigned long user, kernel;
        if (rest && sscanf(rest + 1, " %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %lu %lu", &user,
                           &kernel) == 2)
            usage.servers_s += (double)(user + kernel) / ticks;
    }
    unsigned long t[8] = {0};
    FILE *file = fopen("/proc/stat", "r");
    if (file && fscanf(file, "cpu %lu %lu %lu %lu %lu %lu %lu %lu", t, t + 1, t + 2, t + 3, t + 4,
                       t + 5, t + 6, t + 7) == 8) {
        usage.machine_s = (double)(t[0] + t[1] + t[2] + t[5] + t[6]) / ticks;
        usage.stolen_s = (double)t[7] / ticks;
    }
    if (file) fclose(file);
    return usage;
}

static inline int parse_list(char *text, int *numbers) {
    int count = 0;
    for (char *part = strtok(text, ","); part; part = strtok(NULL, ",")) {
        if (count == NODES_MAX) fail("too many ports or pids");
        numbers[count++] = atoi(part);
    }
    return count;
}

#endif
