/* Conditional writes, the same to three systems: a client writes its key if that is as it was when it was
 * written last, and then again. With --rate in open loop: so many writes a second are due, all clients
 * together, whether earlier ones are answered or not, and the latency of each counts from when it was due.
 *
 *   quorumd    Produce v8 with the header quorumd.if-unchanged-since
 *   etcd       Txn: compare the key's mod_revision; then Put, else Get of the key without its value
 *   zookeeper  setData with the version
 *
 * Each client has a connection to 127.0.0.1, and one request under way. With its own key it knows the newest
 * version from its last answer. With --one-key all write the same one: who is refused learns what it was
 * refused for as cheaply as the system allows, and tries again. quorumd names the offset in its refusal, etcd's
 * Txn has the revision in its else branch, ZooKeeper is asked by `exists`. A write counts when it has
 * succeeded, and its latency from its first try.
 *
 * One thread, one epoll set. Only the wire format differs; etcd's needs libnghttp2 and -DWITH_ETCD. Prints one
 * line of JSON. */
#define _GNU_SOURCE
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "load.h"

#ifdef WITH_ETCD
#include <nghttp2/nghttp2.h>
typedef nghttp2_session *http_session;
#else
typedef void *http_session;
#endif

#define TOPIC "__cluster_metadata"
#define CLIENTS_MAX 4096

enum step { MAKE, LOOK, WRITE }; /* the first two: ZooKeeper's, `create` and `exists` */

struct client {
    int socket;
    enum step step;
    char key[16];
    int64_t version; /* which the key must have */
    uint64_t since_ns;
    uint32_t round;
    struct bytes request, in;
    size_t request_sent; /* with HTTP/2 */
    http_session http;
    bool has_failed; /* the call of etcd */
    bool is_free;    /* with --rate: it waits for a write to be due */
};

struct protocol {
    const char *name;
    void (*greet)(struct client *);
    void (*ask)(struct client *);
    void (*receive)(struct client *);
    void (*flush)(struct client *); /* sends what `ask` has left; NULL: it leaves nothing */
};

static struct {
    int port, pids[NODES_MAX], pid_count, clients, value_bytes;
    double warmup_s, seconds, rate;
    bool one_key;
    const struct protocol *protocol;
} opt = {.clients = 1, .value_bytes = 100, .warmup_s = 0.5, .seconds = 2};

static struct client *clients;
static struct bytes value;
static bool measuring;
static uint64_t now_ns, refused, sent_back;
static int *free_clients, free_count;
static uint64_t schedule_ns, scheduled, measured_from_ns; /* with --rate; scheduled: writes so far */

/* ---- what an answer means --------------------------------------------------------------------- */

static void ask(struct client *client, enum step step) {
    client->step = step;
    opt.protocol->ask(client);
}

static void begin(struct client *client) {
    client->since_ns = now_ns;
    ask(client, WRITE);
}

static uint64_t due_ns(uint64_t number) {
    return schedule_ns + (uint64_t)((double)number * 1e9 / opt.rate);
}

static void go_on(struct client *client) {
    if (opt.rate > 0) {
        client->is_free = true;
        free_clients[free_count++] = (int)(client - clients);
    } else {
        begin(client);
    }
}

static void send_due(void) {
    while (free_count && due_ns(scheduled) <= now_ns) {
        struct client *client = &clients[free_clients[--free_count]];
        client->is_free = false;
        begin(client);
        if (opt.protocol->flush) opt.protocol->flush(client);
        client->since_ns = due_ns(scheduled++);
    }
}

/* Writes without an answer count with the time until now. Returns how many these are. */
static uint64_t count_unanswered(void) {
    uint64_t before = measured;
    for (int i = 0; i < opt.clients; i++)
        if (!clients[i].is_free && clients[i].since_ns >= measured_from_ns)
            record_latency(now_ns - clients[i].since_ns);
    for (uint64_t number = scheduled; due_ns(number) < now_ns; number++)
        if (due_ns(number) >= measured_from_ns) record_latency(now_ns - due_ns(number));
    return measured - before;
}

static void on_written(struct client *client, int64_t version) {
    client->version = version;
    if (measuring && client->since_ns >= measured_from_ns) record_latency(now_ns - client->since_ns);
    go_on(client);
}

static void on_version(struct client *client, int64_t version) {
    client->version = version;
    ask(client, WRITE);
}

/* ---- the socket ------------------------------------------------------------------------------- */

static void send_all(struct client *client, const uint8_t *from, size_t count) {
    /* A lone small request always fits. */
    if (send(client->socket, from, count, MSG_NOSIGNAL) != (ssize_t)count) fail("a request cannot be sent");
}

static void read_some(struct client *client) {
    enum { READ_BYTES = 1 << 14 };
    uint8_t *at = extend(&client->in, READ_BYTES);
    ssize_t count = recv(client->socket, at, READ_BYTES, MSG_DONTWAIT);
    if (count < 0 && errno == EAGAIN) count = 0;
    else if (count <= 0) fail("the server has closed a connection");
    client->in.used -= READ_BYTES - (size_t)count;
    now_ns = clock_ns();
}

/* One answer behind its length, as the first two protocols have it. */
static bool take_frame(struct client *client, struct bytes *frame) {
    if (client->in.used < 4 || client->in.used - 4 < get32(client->in.start)) return false;
    frame->used = 0;
    size_t length = get32(client->in.start);
    memcpy(extend(frame, length), client->in.start + 4, length);
    client->in.used -= 4 + length;
    memmove(client->in.start, client->in.start + 4 + length, client->in.used);
    return true;
}

static int64_t number_at(const uint8_t *at, int size) {
    int64_t found = size == 4 ? (int32_t)get32(at) : 0;
    if (size == 8) found = (int64_t)((uint64_t)get32(at) << 32 | get32(at + 4));
    return found;
}

/* ---- quorumd ---------------------------------------------------------------------------------- */

static void greet_nobody(struct client *client) {
    go_on(client);
}

static void ask_quorumd(struct client *client) {
    char since[20];
    struct bytes body = batch_head(1);
    snprintf(since, sizeof since, "%lld", (long long)client->version);
    put_record(&body, 0, client->key, &value, "quorumd.if-unchanged-since", since);
    client->request.used = 0;
    put_produce(&client->request, 8, TOPIC, &body);
    set32(client->request.start + CORRELATION_AT, ++client->round);
    free(body.start);
    send_all(client, client->request.start, client->request.used);
}

/* The number behind these words of a refusal, -1 without them. */
static int64_t number_behind(const struct bytes *frame, const char *words) {
    const uint8_t *at = memmem(frame->start, frame->used, words, strlen(words));
    if (!at) return -1;
    int64_t found = 0;
    for (at += strlen(words); at < frame->start + frame->used && *at >= '0' && *at <= '9'; at++)
        found = found * 10 + *at - '0';
    return found;
}

static void receive_quorumd(struct client *client) {
    static struct bytes frame;
    size_t error_at = produce_error_at(TOPIC);
    int64_t written_at;
    read_some(client);
    while (take_frame(client, &frame)) {
        if (frame.used < error_at + 10 || get32(frame.start) != client->round) fail("no answer to Produce v8");
        int error = frame.start[error_at] << 8 | frame.start[error_at + 1];
        if (!error) {
            on_written(client, number_at(frame.start + error_at + 2, 8) + 1);
        } else if (error == 87 && (written_at = number_behind(&frame, "was written at offset ")) >= 0) {
            refused += measuring;
            on_version(client, written_at + 1);
        } else if (error == 87 && (written_at = number_behind(&frame, "Read again from offset ")) >= 0) {
            sent_back += measuring;
            on_version(client, written_at);
        } else {
            fprintf(stderr, "error %d\n", error);
            fail("a write has failed");
        }
    }
}

/* ---- ZooKeeper -------------------------------------------------------------------------------- */

enum { ZK_CREATE = 1, ZK_EXISTS = 3, ZK_SET_DATA = 5, ZK_NODE_EXISTS = -110, ZK_BAD_VERSION = -103 };
enum { ZK_ERROR_AT = 12, ZK_STAT_AT = 16, ZK_VERSION_AT = ZK_STAT_AT + 32, ZK_PATH = 1 };

static void put_buffer(struct bytes *to, const void *from, size_t count) {
    put_number(to, (int64_t)count, 4);
    memcpy(extend(to, count), from, count);
}

static void send_frame(struct client *client) {
    set32(client->request.start, (uint32_t)client->request.used - 4);
    send_all(client, client->request.start, client->request.used);
}

static void greet_zookeeper(struct client *client) {
    static const uint8_t password[16];
    struct bytes *to = &client->request;
    put_number(to, 0, 4);
    put_number(to, 0, 4);     /* version */
    put_number(to, 0, 8);     /* newest zxid */
    put_number(to, 30000, 4); /* session timeout, ms */
    put_number(to, 0, 8);     /* a new session */
    put_buffer(to, password, sizeof password);
    put_number(to, 0, 1); /* not read-only */
    send_frame(client);
}

static void ask_zookeeper(struct client *client) {
    static const int codes[] = {[MAKE] = ZK_CREATE, [LOOK] = ZK_EXISTS, [WRITE] = ZK_SET_DATA};
    struct bytes *to = &client->request;
    to->used = 0;
    put_number(to, 0, 4);
    put_number(to, ++client->round, 4);
    put_number(to, codes[client->step], 4);
    put_number(to, (int64_t)strlen(client->key) + ZK_PATH, 4);
    *extend(to, ZK_PATH) = '/';
    memcpy(extend(to, strlen(client->key)), client->key, strlen(client->key));
    if (client->step == LOOK) {
        put_number(to, 0, 1); /* no watch */
    } else {
        put_buffer(to, value.start, value.used);
        if (client->step == WRITE) {
            put_number(to, client->version, 4);
        } else {
            put_number(to, 1, 4); /* one ACL: everything to anyone */
            put_number(to, 31, 4);
            put_buffer(to, "world", 5);
            put_buffer(to, "anyone", 6);
            put_number(to, 0, 4); /* persistent */
        }
    }
    send_frame(client);
}

static void take_zookeeper(struct client *client, const struct bytes *frame) {
    if (frame->used < ZK_STAT_AT || get32(frame->start) != client->round) fail("no answer of ZooKeeper");
    int error = (int)number_at(frame->start + ZK_ERROR_AT, 4);
    if (client->step == MAKE && (!error || error == ZK_NODE_EXISTS)) {
        ask(client, LOOK);
    } else if (client->step == WRITE && error == ZK_BAD_VERSION) {
        refused += measuring;
        ask(client, LOOK);
    } else if (error || frame->used < ZK_VERSION_AT + 4) {
        fprintf(stderr, "error %d\n", error);
        fail("a write has failed");
    } else if (client->step == LOOK) {
        on_version(client, number_at(frame->start + ZK_VERSION_AT, 4));
    } else {
        on_written(client, number_at(frame->start + ZK_VERSION_AT, 4));
    }
}

static void receive_zookeeper(struct client *client) {
    static struct bytes frame;
    read_some(client);
    while (take_frame(client, &frame)) {
        if (client->round) {
            take_zookeeper(client, &frame);
            continue;
        }
        client->since_ns = now_ns; /* the session has begun */
        ask(client, MAKE);
    }
}

/* ---- etcd ------------------------------------------------------------------------------------- */

#ifdef WITH_ETCD

enum { VARINT = 0, LENGTH = 2, GRPC_HEAD_BYTES = 5 };
enum { COMPARE_TARGET = 2, COMPARE_KEY, COMPARE_MOD_REVISION = 6, TARGET_MOD = 2 };
enum { TXN_COMPARE = 1, TXN_SUCCESS, TXN_FAILURE };
enum { OP_RANGE = 1, OP_PUT };
enum { PUT_KEY = 1, PUT_VALUE, RANGE_KEY = 1, RANGE_KEYS_ONLY = 8 };
enum { ANSWER_HEADER = 1, ANSWER_SUCCEEDED, ANSWER_RESPONSES, HEADER_REVISION = 3 };
enum { RESPONSE_RANGE = 1, RANGE_KVS, KV_MOD_REVISION };

static void put_protobuf_number(struct bytes *to, uint64_t number) {
    for (; number > 127; number >>= 7) *extend(to, 1) = (uint8_t)(number | 128);
    *extend(to, 1) = (uint8_t)number;
}

static void put_field_number(struct bytes *to, int field, uint64_t number) {
    put_protobuf_number(to, (uint64_t)field << 3 | VARINT);
    put_protobuf_number(to, number);
}

static void put_field(struct bytes *to, int field, const void *from, size_t count) {
    put_protobuf_number(to, (uint64_t)field << 3 | LENGTH);
    put_protobuf_number(to, count);
    memcpy(extend(to, count), from, count);
}

/* An operation of a Txn: its message is in `inner`, which is used up. */
static void put_operation(struct bytes *to, int field, int kind, struct bytes *inner) {
    static struct bytes operation;
    operation.used = 0;
    put_field(&operation, kind, inner->start, inner->used);
    put_field(to, field, operation.start, operation.used);
    inner->used = 0;
}

static void build_txn(struct client *client) {
    static struct bytes inner;
    struct bytes *to = &client->request;
    size_t key_bytes = strlen(client->key);
    to->used = inner.used = 0;
    extend(to, GRPC_HEAD_BYTES);
    put_field_number(&inner, COMPARE_TARGET, TARGET_MOD);
    put_field(&inner, COMPARE_KEY, client->key, key_bytes);
    put_field_number(&inner, COMPARE_MOD_REVISION, (uint64_t)client->version);
    put_field(to, TXN_COMPARE, inner.start, inner.used);
    inner.used = 0;
    put_field(&inner, PUT_KEY, client->key, key_bytes);
    put_field(&inner, PUT_VALUE, value.start, value.used);
    put_operation(to, TXN_SUCCESS, OP_PUT, &inner);
    put_field(&inner, RANGE_KEY, client->key, key_bytes);
    put_field_number(&inner, RANGE_KEYS_ONLY, 1);
    put_operation(to, TXN_FAILURE, OP_RANGE, &inner);
    to->start[0] = 0; /* not compressed */
    set32(to->start + 1, (uint32_t)to->used - GRPC_HEAD_BYTES);
}

struct span {
    const uint8_t *at, *end;
};

static uint64_t take_protobuf_number(struct span *span) {
    uint64_t found = 0;
    for (int shift = 0; span->at < span->end && shift < 64; shift += 7) {
        found |= (uint64_t)(*span->at & 127) << shift;
        if (!(*span->at++ & 128)) return found;
    }
    fail("an answer of etcd that cannot be read");
    return 0;
}

/* The first field of that number: its bytes, or its number in `number`; 0 and nothing if it is absent. */
static struct span field_of(struct span span, uint64_t wanted, uint64_t *number) {
    if (number) *number = 0;
    while (span.at < span.end) {
        uint64_t tag = take_protobuf_number(&span), size = take_protobuf_number(&span);
        struct span found = {span.at, span.at};
        if ((tag & 7) == LENGTH) {
            if (size > (uint64_t)(span.end - span.at)) fail("an answer of etcd that ends too early");
            found.end = span.at += size;
        } else if ((tag & 7) != VARINT) {
            fail("an answer of etcd that cannot be read");
        }
        if (tag >> 3 == wanted) {
            if (number) *number = size;
            return found;
        }
    }
    return (struct span){span.end, span.end};
}

static void take_txn(struct client *client) {
    struct span answer = {client->in.start + GRPC_HEAD_BYTES, client->in.start + client->in.used};
    uint64_t has_succeeded, revision;
    if (client->has_failed || client->in.used < GRPC_HEAD_BYTES) fail("a Txn has failed");
    field_of(answer, ANSWER_SUCCEEDED, &has_succeeded);
    if (has_succeeded) {
        field_of(field_of(answer, ANSWER_HEADER, NULL), HEADER_REVISION, &revision);
        client->in.used = 0;
        on_written(client, (int64_t)revision);
        return;
    }
    struct span range = field_of(field_of(answer, ANSWER_RESPONSES, NULL), RESPONSE_RANGE, NULL);
    field_of(field_of(range, RANGE_KVS, NULL), KV_MOD_REVISION, &revision);
    client->in.used = 0;
    refused += measuring;
    on_version(client, (int64_t)revision);
}

static ssize_t on_body_wanted(nghttp2_session *session, int32_t stream, uint8_t *to, size_t room,
                              uint32_t *flags, nghttp2_data_source *source, void *user) {
    struct client *client = source->ptr;
    size_t count = client->request.used - client->request_sent;
    (void)session, (void)stream, (void)user;
    if (count > room) count = room;
    memcpy(to, client->request.start + client->request_sent, count);
    client->request_sent += count;
    if (client->request_sent == client->request.used) *flags |= NGHTTP2_DATA_FLAG_EOF;
    return (ssize_t)count;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_bytes,
                     const uint8_t *text, size_t text_bytes, uint8_t flags, void *user) {
    struct client *client = user;
    (void)session, (void)frame, (void)flags;
    if (name_bytes == 11 && !memcmp(name, "grpc-status", 11) && !(text_bytes == 1 && *text == '0'))
        client->has_failed = true;
    return 0;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t stream, const uint8_t *from, size_t count,
                   void *user) {
    struct client *client = user;
    (void)session, (void)flags, (void)stream;
    memcpy(extend(&client->in, count), from, count);
    return 0;
}

static int on_closed(nghttp2_session *session, int32_t stream, uint32_t error, void *user) {
    (void)session, (void)stream;
    if (error) fail("etcd has broken a call off");
    take_txn(user);
    return 0;
}

static void send_http(struct client *client) {
    static struct bytes out;
    const uint8_t *from;
    ssize_t count;
    out.used = 0;
    while ((count = nghttp2_session_mem_send(client->http, &from)) > 0)
        memcpy(extend(&out, (size_t)count), from, (size_t)count);
    if (count < 0) fail("HTTP/2");
    if (out.used) send_all(client, out.start, out.used);
}

#define HEADER(name, text) {(uint8_t *)name, (uint8_t *)text, sizeof name - 1, sizeof text - 1, NGHTTP2_NV_FLAG_NONE}

/* Sent by `receive_etcd`, or by `send_due`: this may be called while nghttp2 reads. */
static void ask_etcd(struct client *client) {
    static const nghttp2_nv headers[] = {
        HEADER(":method", "POST"), HEADER(":scheme", "http"), HEADER(":path", "/etcdserverpb.KV/Txn"),
        HEADER(":authority", "127.0.0.1"), HEADER("content-type", "application/grpc"), HEADER("te", "trailers")};
    nghttp2_data_provider body = {.source.ptr = client, .read_callback = on_body_wanted};
    build_txn(client);
    client->request_sent = 0;
    if (nghttp2_submit_request(client->http, NULL, headers, sizeof headers / sizeof *headers, &body, NULL) < 0)
        fail("HTTP/2");
}

static void greet_etcd(struct client *client) {
    static nghttp2_session_callbacks *callbacks;
    if (!callbacks) {
        nghttp2_session_callbacks_new(&callbacks);
        nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
        nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
        nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_closed);
    }
    nghttp2_session_client_new(&client->http, callbacks, client);
    nghttp2_submit_settings(client->http, NGHTTP2_FLAG_NONE, NULL, 0);
    go_on(client);
    send_http(client);
}

static void receive_etcd(struct client *client) {
    uint8_t from[1 << 14];
    ssize_t count = recv(client->socket, from, sizeof from, MSG_DONTWAIT);
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) fail("the server has closed a connection");
    now_ns = clock_ns();
    if (nghttp2_session_mem_recv(client->http, from, (size_t)count) != count) fail("HTTP/2");
    send_http(client);
}

#endif

/* ---- a run ------------------------------------------------------------------------------------ */

static const struct protocol protocols[] = {
    {"quorumd", greet_nobody, ask_quorumd, receive_quorumd, NULL},
    {"zookeeper", greet_zookeeper, ask_zookeeper, receive_zookeeper, NULL},
#ifdef WITH_ETCD
    {"etcd", greet_etcd, ask_etcd, receive_etcd, send_http},
#endif
};

static void connect_client(struct client *client, int index, int epoll) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)opt.port)};
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)index};
    int on = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    snprintf(client->key, sizeof client->key, "c%04d", opt.one_key ? 0 : index);
    client->socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (client->socket < 0 || connect(client->socket, (struct sockaddr *)&address, sizeof address))
        fail("cannot connect");
    setsockopt(client->socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, client->socket, &event)) fail("epoll_ctl");
}

static void run_for(double seconds, int epoll) {
    struct epoll_event events[256];
    uint64_t end_ns = now_ns + (uint64_t)(seconds * 1e9);
    while (now_ns < end_ns) {
        struct timespec wait = {.tv_nsec = 20 * MS};
        if (free_count) {
            uint64_t at_ns = due_ns(scheduled);
            uint64_t left_ns = at_ns > now_ns ? at_ns - now_ns : 0;
            if (left_ns < (uint64_t)wait.tv_nsec) wait.tv_nsec = (long)left_ns;
        }
        int count = epoll_pwait2(epoll, events, 256, &wait, NULL);
        now_ns = clock_ns();
        for (int i = 0; i < count; i++) opt.protocol->receive(&clients[events[i].data.u32]);
        if (opt.rate > 0) send_due();
    }
}

static void print_result(double elapsed_s, struct usage before, struct usage after) {
    uint64_t acknowledged = measured, unanswered = opt.rate > 0 ? count_unanswered() : 0;
    double client_s = after.client_s - before.client_s, servers_s = after.servers_s - before.servers_s;
    double other_s = after.machine_s - before.machine_s - client_s - servers_s;
    printf("{\"clients\": %d, \"one_key\": %s, \"seconds\": %.3f, \"writes\": %llu, \"records_per_s\": %.1f"
           ", \"refused_per_s\": %.1f, \"sent_back\": %llu, \"unanswered\": %llu"
           ", \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"p999_ms\": %.3f, \"max_ms\": %.3f"
           ", \"cores_client\": %.3f, \"cores_servers\": %.3f, \"cores_other\": %.3f, \"cores_stolen\": %.3f}\n",
           opt.clients, opt.one_key ? "true" : "false", elapsed_s, (unsigned long long)acknowledged,
           (double)acknowledged / elapsed_s, (double)refused / elapsed_s, (unsigned long long)sent_back,
           (unsigned long long)unanswered, quantile_ms(.5), quantile_ms(.99), quantile_ms(.999),
           (double)longest_ns / 1e6, client_s / elapsed_s, servers_s / elapsed_s, other_s / elapsed_s,
           (after.stolen_s - before.stolen_s) / elapsed_s);
}

static const struct protocol *protocol_of(const char *name) {
    for (size_t i = 0; i < sizeof protocols / sizeof *protocols; i++)
        if (!strcmp(protocols[i].name, name)) return &protocols[i];
    fail("a protocol that this build does not speak");
    return NULL;
}

static void parse_options(int count, char **words) {
    enum { PROTOCOL, PORT, PIDS, CLIENTS, VALUE, WARMUP, SECONDS, RATE, ONE_KEY };
    static const struct option known[] = {
        {"protocol", 1, 0, PROTOCOL}, {"port", 1, 0, PORT}, {"pids", 1, 0, PIDS}, {"clients", 1, 0, CLIENTS},
        {"value-bytes", 1, 0, VALUE}, {"warmup", 1, 0, WARMUP}, {"seconds", 1, 0, SECONDS},
        {"rate", 1, 0, RATE}, {"one-key", 0, 0, ONE_KEY}, {0, 0, 0, 0}};
    for (int option; (option = getopt_long(count, words, "", known, NULL)) != -1;) switch (option) {
        case PROTOCOL: opt.protocol = protocol_of(optarg); break;
        case PORT: opt.port = atoi(optarg); break;
        case PIDS: opt.pid_count = parse_list(optarg, opt.pids); break;
        case CLIENTS: opt.clients = atoi(optarg); break;
        case VALUE: opt.value_bytes = atoi(optarg); break;
        case WARMUP: opt.warmup_s = atof(optarg); break;
        case SECONDS: opt.seconds = atof(optarg); break;
        case RATE: opt.rate = atof(optarg); break;
        case ONE_KEY: opt.one_key = true; break;
        default: exit(2);
    }
    if (optind != count || !opt.port || !opt.protocol || opt.clients < 1 || opt.clients > CLIENTS_MAX ||
        opt.value_bytes < 0)
        fail("bad options: --protocol and --port are needed; 1 <= clients <= 4096");
}

int main(int count, char **words) {
    parse_options(count, words);
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    clients = calloc((size_t)opt.clients, sizeof *clients);
    free_clients = calloc((size_t)opt.clients, sizeof *free_clients);
    if (epoll < 0 || !clients || !free_clients) fail("out of memory");
    for (int i = 0; i < opt.value_bytes; i++) *extend(&value, 1) = noise();
    for (int i = 0; i < opt.clients; i++) connect_client(&clients[i], i, epoll);
    now_ns = clock_ns();
    for (int i = 0; i < opt.clients; i++) opt.protocol->greet(&clients[i]);
    schedule_ns = now_ns = clock_ns();
    run_for(opt.warmup_s, epoll);
    measuring = true;
    struct usage before = read_usage(opt.pids, opt.pid_count);
    uint64_t begin_ns = now_ns = clock_ns();
    if (opt.rate > 0) measured_from_ns = begin_ns;
    run_for(opt.seconds, epoll);
    print_result((double)(now_ns - begin_ns) / 1e9, before, read_usage(opt.pids, opt.pid_count));
    return 0;
}
