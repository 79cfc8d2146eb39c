/* Closed-loop load on a quorum, by the Kafka protocol and nothing else: Produce v7, acks=-1, one
 * record batch per request, partition 0 of one topic, on 127.0.0.1.
 *
 * A client sends a request, waits for its answer, sends the next. Clients share connections, client
 * c uses connection c mod M, so each connection carries several requests at once. A request is
 * built once per client; only its correlation id changes from one round to the next, and that names
 * client and round, so an answer needs no search. One thread, one epoll set, no allocation while
 * measuring: a request costs its share of two system calls and a copy.
 *
 * Latencies go into a histogram with 128 steps per power of two: quantiles are within 0.8 %.
 *
 * --rate: open loop. So many requests a second are due, all clients together, whether earlier ones are
 * answered or not; each is sent by a client that is free. Its latency counts from when it was due, so a
 * request that had to wait for a free client has waited ("coordinated omission"). What is due and
 * unanswered at the end counts with the time until then, in `unanswered`.
 *
 * --kill-pid: after the measured time that process gets SIGKILL (or the signal --signal), and the
 * clock runs until an acknowledgement of a request that was sent after it; and until every client
 * has had one.
 * --until-first-ack: ends with the first acknowledgement and prints its time on CLOCK_MONOTONIC.
 * --tls-certificate, --tls-ca: all connections by TLS, with this certificate and its key (one PEM file), to
 * servers of this CA; built with -DWITH_TLS. Handshakes are made before anything is measured.
 * --by-number: measures no time. For each number on standard input, all clients together send so
 * many requests; when all are answered a line with the number of errors is printed.
 *
 * Prints one line of JSON. */
#define _GNU_SOURCE
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "load.h"

#ifdef WITH_TLS
#include <openssl/err.h>
#include <openssl/ssl.h>
#endif

#define CLIENTS_MAX 4096 /* 12 bits of the correlation id */
#define ROUND_MASK 0x7ffff
#define ERROR_CODES 160
#define TIMER UINT32_MAX /* in place of a connection's number */

static struct {
    int ports[NODES_MAX], port_count, pids[NODES_MAX], pid_count;
    int clients, connections, records, value_bytes, kill_pid, kill_signal;
    double warmup_s, seconds, kill_wait_s, connect_s, rate;
    uint64_t timeout_ns, retry_ns;
    bool until_first_ack, by_number;
    const char *topic, *tls_certificate, *tls_ca;
} opt = {
    .clients = 1, .records = 1, .value_bytes = 100, .kill_signal = SIGKILL, .warmup_s = 1, .seconds = 5,
    .kill_wait_s = 30, .connect_s = 30, .timeout_ns = 10 * SECOND, .retry_ns = 5 * MS, .topic = "__cluster_metadata",
};

/* ---- requests --------------------------------------------------------------------------------- */

static struct bytes produce_request(int client) {
    struct bytes request = {0}, body = batch_head(opt.records), value = {0};
    for (int i = 0; i < opt.records; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%04d", opt.records > 1 ? i : client % 256);
        value.used = 0;
        for (int byte = 0; byte < opt.value_bytes; byte++) *extend(&value, 1) = noise();
        put_record(&body, i, key, &value, NULL, NULL);
    }
    put_produce(&request, 7, opt.topic, &body);
    free(value.start);
    free(body.start);
    return request;
}

/* ---- clients and connections ------------------------------------------------------------------ */

struct client {
    struct bytes request;
    uint32_t round;
    bool waiting, served_after_kill, is_free; /* is_free: on the stack of those */
    uint64_t sent_ns, since_ns;               /* since_ns: when it was due, or else sent */
};

enum link_state { CLOSED, CONNECTING, SHAKING, OPEN };

struct link {
    enum link_state state;
    int socket, node;
    uint64_t since_ns; /* CLOSED: when to try again; else when the state began */
    bool writable_wanted;
#ifdef WITH_TLS
    SSL *tls;
#endif
    struct bytes out, in;
    size_t out_sent;
    int *order, first, waiting; /* ring of the clients whose answers are due, oldest first */
};

static struct client *clients;
static struct link *links;
static int epoll, clients_per_link;
static bool sending, measuring;
static uint64_t now_ns, killed_ns, first_after_kill_ns, first_ack_ns;
static uint64_t acknowledged, lost, errors_by_code[ERROR_CODES];
static int served_after_kill, open_links;
static uint64_t schedule_ns, scheduled, measured_from_ns; /* with --rate; scheduled: requests so far */
static int *free_clients, free_count, timer;
static uint64_t may_send = UINT64_MAX, unanswered; /* may_send: requests, all clients together */

static void watch(struct link *link, int operation, bool writable) {
    struct epoll_event event = {.events = EPOLLIN | (writable ? EPOLLOUT : 0)};
    event.data.u32 = (uint32_t)(link - links);
    if (epoll_ctl(epoll, operation, link->socket, &event)) fail("epoll_ctl");
    link->writable_wanted = writable;
}

/* As send and recv; with TLS, where it is wanted. */
static ssize_t put_bytes(struct link *link, const uint8_t *from, size_t count);
static ssize_t get_bytes(struct link *link, uint8_t *to, size_t count);
static void end_tls(struct link *link);

/* Leaves the node: its clients' requests are lost, and the next node is tried a little later. */
static void leave(struct link *link) {
    if (link->state == OPEN) open_links--;
    end_tls(link);
    close(link->socket);
    for (; link->waiting; link->waiting--, link->first = (link->first + 1) % clients_per_link) {
        clients[link->order[link->first]].waiting = false;
        unanswered--;
        lost += measuring;
    }
    link->state = CLOSED;
    link->out.used = link->out_sent = link->in.used = 0;
    link->node = (link->node + 1) % opt.port_count;
    link->since_ns = now_ns + opt.retry_ns;
}

static void connect_link(struct link *link) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_port = htons((uint16_t)opt.ports[link->node]);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int on = 1;
    link->socket = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (link->socket < 0) fail("no socket: too many open files?");
    setsockopt(link->socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    link->state = CONNECTING;
    link->since_ns = now_ns;
    if (connect(link->socket, (struct sockaddr *)&address, sizeof address) && errno != EINPROGRESS)
        leave(link);
    else
        watch(link, EPOLL_CTL_ADD, true);
}

static void send_pending(struct link *link) {
    while (link->out_sent < link->out.used) {
        ssize_t count = put_bytes(link, link->out.start + link->out_sent, link->out.used - link->out_sent);
        if (count < 0) {
            if (errno != EAGAIN) leave(link);
            else if (!link->writable_wanted) watch(link, EPOLL_CTL_MOD, true);
            return;
        }
        link->out_sent += (size_t)count;
    }
    link->out.used = link->out_sent = 0;
    if (link->writable_wanted) watch(link, EPOLL_CTL_MOD, false);
}

static void queue_request(struct link *link, int index) {
    struct client *client = &clients[index];
    client->round = (client->round + 1) & ROUND_MASK;
    client->waiting = true;
    client->sent_ns = client->since_ns = now_ns;
    may_send--;
    unanswered++;
    set32(client->request.start + CORRELATION_AT, client->round << 12 | (uint32_t)index);
    memcpy(extend(&link->out, client->request.used), client->request.start, client->request.used);
    link->order[(link->first + link->waiting++) % clients_per_link] = index;
}

static uint64_t due_ns(uint64_t number) {
    return schedule_ns + (uint64_t)((double)number * 1e9 / opt.rate);
}

static void set_free(int index) {
    if (clients[index].is_free) return;
    clients[index].is_free = true;
    free_clients[free_count++] = index;
}

/* Sends what is due, as long as a client is free; wakes up when the next one is due. */
static void send_due(void) {
    while (free_count && due_ns(scheduled) <= now_ns) {
        int index = free_clients[--free_count];
        struct link *link = &links[index % opt.connections];
        clients[index].is_free = false;
        if (link->state != OPEN) continue; /* free again once it is */
        queue_request(link, index);
        clients[index].since_ns = due_ns(scheduled++);
        send_pending(link);
    }
    struct itimerspec at = {0};
    if (free_count) {
        at.it_value.tv_sec = (time_t)(due_ns(scheduled) / SECOND);
        at.it_value.tv_nsec = (long)(due_ns(scheduled) % SECOND);
    }
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
}

static void start_clients(struct link *link) {
    for (int index = (int)(link - links); index < opt.clients; index += opt.connections) {
        if (clients[index].waiting) continue;
        if (opt.rate > 0) set_free(index);
        else if (may_send) queue_request(link, index);
    }
    send_pending(link);
}

static void acknowledge(struct client *client) {
    if (!first_ack_ns) first_ack_ns = now_ns;
    if (measuring && client->since_ns >= measured_from_ns) {
        acknowledged++;
        record_latency(now_ns - client->since_ns);
    }
    if (killed_ns && client->sent_ns > killed_ns) {
        if (!first_after_kill_ns) first_after_kill_ns = now_ns;
        if (!client->served_after_kill) served_after_kill++;
        client->served_after_kill = true;
    }
}

/* One answer without its length; false if this node is to be left. */
static bool take_answer(struct link *link, const uint8_t *answer, size_t length) {
    size_t error_at = produce_error_at(opt.topic);
    if (!link->waiting || length < error_at + 2) fail("an answer that is none to Produce v7");
    int index = link->order[link->first];
    struct client *client = &clients[index];
    if (get32(answer) != (client->round << 12 | (uint32_t)index)) fail("an answer out of order");
    link->first = (link->first + 1) % clients_per_link;
    link->waiting--;
    client->waiting = false;
    unanswered--;
    int16_t error = (int16_t)(answer[error_at] << 8 | answer[error_at + 1]);
    if (error) {
        if (measuring) errors_by_code[error > 0 && error < ERROR_CODES ? error : 0]++;
        return false;
    }
    acknowledge(client);
    if (opt.rate > 0) set_free(index);
    else if (sending && may_send) queue_request(link, index);
    return true;
}

static void receive(struct link *link) {
    enum { READ_BYTES = 1 << 16 };
    uint8_t *at = extend(&link->in, READ_BYTES);
    ssize_t count = get_bytes(link, at, READ_BYTES);
    link->in.used -= READ_BYTES - (count > 0 ? (size_t)count : 0);
    if (count < 0 && errno == EAGAIN) return;
    now_ns = clock_ns();
    size_t done = 0;
    if (count <= 0) leave(link);
    while (link->state == OPEN && link->in.used - done >= 4) {
        size_t length = get32(link->in.start + done);
        if (link->in.used - done - 4 < length) break;
        if (!take_answer(link, link->in.start + done + 4, length)) leave(link);
        done += 4 + length;
    }
    if (link->state == CLOSED) return;
    link->in.used -= done;
    memmove(link->in.start, link->in.start + done, link->in.used);
    send_pending(link);
}

static void opened(struct link *link) {
    link->state = OPEN;
    link->since_ns = now_ns;
    open_links++;
    watch(link, EPOLL_CTL_MOD, false);
    if (sending) start_clients(link);
}

#ifdef WITH_TLS

static SSL_CTX *tls_context;

static void prepare_tls(void) {
    if (!opt.tls_certificate) return;
    tls_context = SSL_CTX_new(TLS_client_method());
    if (!tls_context || SSL_CTX_use_certificate_chain_file(tls_context, opt.tls_certificate) != 1 ||
        SSL_CTX_use_PrivateKey_file(tls_context, opt.tls_certificate, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_load_verify_locations(tls_context, opt.tls_ca, NULL) != 1)
        fail("the files for TLS cannot be used");
    SSL_CTX_set_verify(tls_context, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_mode(tls_context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(tls_context, 1);
    SSL_CTX_set_session_cache_mode(tls_context, SSL_SESS_CACHE_OFF);
}

/* Sets errno to EAGAIN if it has to be tried again. */
static ssize_t tls_result(struct link *link, int count) {
    if (count > 0) return count;
    int error = SSL_get_error(link->tls, count);
    ERR_clear_error();
    if (error == SSL_ERROR_ZERO_RETURN) return 0;
    errno = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? EAGAIN : EPROTO;
    return -1;
}

static ssize_t put_bytes(struct link *link, const uint8_t *from, size_t count) {
    if (!link->tls) return send(link->socket, from, count, MSG_NOSIGNAL);
    return tls_result(link, SSL_write(link->tls, from, (int)count));
}

/* As many records as have come: OpenSSL holds them, and epoll does not know. */
static ssize_t get_bytes(struct link *link, uint8_t *to, size_t count) {
    if (!link->tls) return recv(link->socket, to, count, 0);
    size_t got = 0;
    ssize_t result = 0;
    while (got < count && (result = tls_result(link, SSL_read(link->tls, to + got, (int)(count - got)))) > 0)
        got += (size_t)result;
    if (got == count) fail("more answers at once than there is room for");
    return got ? (ssize_t)got : result;
}

static void end_tls(struct link *link) {
    SSL_free(link->tls);
    link->tls = NULL;
}

static void shake(struct link *link) {
    if (!link->tls) {
        link->tls = SSL_new(tls_context);
        if (!link->tls || SSL_set_fd(link->tls, link->socket) != 1) fail("no TLS");
        watch(link, EPOLL_CTL_MOD, false);
    }
    int done = SSL_connect(link->tls);
    if (done == 1) opened(link);
    else if (SSL_get_error(link->tls, done) != SSL_ERROR_WANT_READ) {
        ERR_print_errors_fp(stderr);
        leave(link);
    }
}

#else

static void prepare_tls(void) {
    if (opt.tls_certificate) fail("built without TLS");
}

static ssize_t put_bytes(struct link *link, const uint8_t *from, size_t count) {
    return send(link->socket, from, count, MSG_NOSIGNAL);
}

static ssize_t get_bytes(struct link *link, uint8_t *to, size_t count) {
    return recv(link->socket, to, count, 0);
}

static void end_tls(struct link *link) {
    (void)link;
}

static void shake(struct link *link) {
    opened(link);
}

#endif

static void connected(struct link *link) {
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(link->socket, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error) return leave(link);
    if (!opt.tls_certificate) return opened(link);
    link->state = SHAKING;
    shake(link);
}

static void check_times(void) {
    for (int i = 0; i < opt.connections; i++) {
        struct link *link = &links[i];
        if (link->state == CLOSED && now_ns >= link->since_ns) connect_link(link);
        else if ((link->state == CONNECTING || link->state == SHAKING) && now_ns - link->since_ns > opt.timeout_ns) leave(link);
        else if (link->state == OPEN && link->waiting &&
                 now_ns - clients[link->order[link->first]].sent_ns > opt.timeout_ns)
            leave(link);
    }
}

/* ---- a run ------------------------------------------------------------------------------------ */

static void step(int wait_ms) {
    struct epoll_event events[256];
    static uint64_t checked_ns;
    int count = epoll_wait(epoll, events, 256, wait_ms);
    now_ns = clock_ns();
    for (int i = 0; i < count; i++) {
        if (events[i].data.u32 == TIMER) continue;
        struct link *link = &links[events[i].data.u32];
        if (link->state == CONNECTING) connected(link);
        else if (link->state == SHAKING) shake(link);
        else if (link->state == OPEN) {
            if (events[i].events & EPOLLOUT) send_pending(link);
            if (link->state == OPEN && events[i].events & ~(uint32_t)EPOLLOUT) receive(link);
        }
    }
    if (now_ns - checked_ns >= MS) {
        checked_ns = now_ns;
        check_times();
    }
    if (schedule_ns) send_due();
}

/* From now on requests are due. */
static void start_schedule(void) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    event.data.u32 = TIMER;
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (timer < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &event)) fail("no timer");
    schedule_ns = now_ns = clock_ns();
    send_due();
}

/* What was due in the measured time and is not answered has taken until now, at least. */
static uint64_t count_unanswered(uint64_t end_ns) {
    uint64_t before = measured;
    for (int i = 0; i < opt.clients; i++)
        if (clients[i].waiting && clients[i].since_ns >= measured_from_ns)
            record_latency(end_ns - clients[i].since_ns);
    for (uint64_t number = scheduled; due_ns(number) < end_ns; number++)
        if (due_ns(number) >= measured_from_ns) record_latency(end_ns - due_ns(number));
    return measured - before;
}

/* Some nodes may be down in a failover run: three quarters of a second is time enough for the rest. */
static void wait_for_connections(void) {
    uint64_t begin = now_ns;
    double limit_s = opt.kill_pid ? 0.75 : opt.connect_s;
    while (open_links < opt.connections && (double)(now_ns - begin) < limit_s * 1e9) step(1);
    if (open_links < opt.connections && !opt.kill_pid) fail("cannot connect");
}

static void run_for(double seconds) {
    uint64_t end = now_ns + (uint64_t)(seconds * 1e9);
    while (now_ns < end && !(opt.until_first_ack && first_ack_ns))
        step(open_links < opt.connections ? 1 : 20);
}

static void serve_numbers(void) {
    unsigned long long number;
    measuring = true;
    while (scanf("%llu", &number) == 1) {
        uint64_t before = acknowledged;
        may_send = number;
        now_ns = clock_ns();
        for (int i = 0; i < opt.connections; i++)
            if (links[i].state == OPEN) start_clients(&links[i]);
        while (may_send || unanswered) step(20);
        printf("%llu\n", number - (unsigned long long)(acknowledged - before));
        fflush(stdout);
    }
}

static void print_failover(uint64_t end_ns) {
    printf(", \"first_ack_ms\": %.1f, \"all_clients_ms\": %.1f, \"clients_served\": %d",
           first_after_kill_ns ? (double)(first_after_kill_ns - killed_ns) / 1e6 : -1.0,
           served_after_kill == opt.clients ? (double)(end_ns - killed_ns) / 1e6 : -1.0,
           served_after_kill);
}

static void print_result(double elapsed_s, struct usage before, struct usage after) {
    double client_s = after.client_s - before.client_s, servers_s = after.servers_s - before.servers_s;
    double other_s = after.machine_s - before.machine_s - client_s - servers_s;
    uint64_t errors = 0;
    for (int code = 0; code < ERROR_CODES; code++) errors += errors_by_code[code];
    printf("{\"clients\": %d, \"connections\": %d, \"records_per_batch\": %d, \"value_bytes\": %d"
           ", \"seconds\": %.3f, \"requests\": %llu, \"requests_per_s\": %.1f, \"records_per_s\": %.1f"
           ", \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"p999_ms\": %.3f, \"max_ms\": %.3f, \"mean_ms\": %.3f"
           ", \"errors\": %llu, \"lost\": %llu, \"cores_client\": %.3f, \"cores_servers\": %.3f"
           ", \"cores_other\": %.3f, \"cores_stolen\": %.3f",
           opt.clients, opt.connections, opt.records, opt.value_bytes, elapsed_s,
           (unsigned long long)acknowledged, (double)acknowledged / elapsed_s,
           (double)acknowledged * opt.records / elapsed_s, quantile_ms(.5), quantile_ms(.99),
           quantile_ms(.999), (double)longest_ns / 1e6, measured ? latency_sum_ns / (double)measured / 1e6 : 0,
           (unsigned long long)errors, (unsigned long long)lost, client_s / elapsed_s,
           servers_s / elapsed_s, other_s / elapsed_s, (after.stolen_s - before.stolen_s) / elapsed_s);
    printf(", \"errors_by_code\": {");
    const char *comma = "";
    for (int code = 0; code < ERROR_CODES; code++)
        if (errors_by_code[code]) {
            printf("%s\"%d\": %llu", comma, code, (unsigned long long)errors_by_code[code]);
            comma = ", ";
        }
    printf("}");
}

static void parse_options(int count, char **words) {
    enum { PORTS, PIDS, CLIENTS, CONNECTIONS, RECORDS, VALUE, WARMUP, SECONDS, KILL, SIGNAL,
           KILL_WAIT, TIMEOUT, RETRY, CONNECT, TOPIC, FIRST, NUMBERS, RATE, CERTIFICATE, CA };
    static const struct option known[] = {
        {"ports", 1, 0, PORTS}, {"pids", 1, 0, PIDS}, {"clients", 1, 0, CLIENTS},
        {"connections", 1, 0, CONNECTIONS}, {"records", 1, 0, RECORDS}, {"value-bytes", 1, 0, VALUE},
        {"warmup", 1, 0, WARMUP}, {"seconds", 1, 0, SECONDS}, {"kill-pid", 1, 0, KILL}, {"signal", 1, 0, SIGNAL},
        {"kill-wait", 1, 0, KILL_WAIT}, {"timeout-ms", 1, 0, TIMEOUT}, {"retry-ms", 1, 0, RETRY},
        {"connect-seconds", 1, 0, CONNECT}, {"topic", 1, 0, TOPIC}, {"until-first-ack", 0, 0, FIRST},
        {"by-number", 0, 0, NUMBERS}, {"rate", 1, 0, RATE},
        {"tls-certificate", 1, 0, CERTIFICATE}, {"tls-ca", 1, 0, CA}, {0, 0, 0, 0}};
    for (int option; (option = getopt_long(count, words, "", known, NULL)) != -1;) switch (option) {
        case PORTS: opt.port_count = parse_list(optarg, opt.ports); break;
        case CERTIFICATE: opt.tls_certificate = optarg; break;
        case CA: opt.tls_ca = optarg; break;
        case PIDS: opt.pid_count = parse_list(optarg, opt.pids); break;
        case CLIENTS: opt.clients = atoi(optarg); break;
        case CONNECTIONS: opt.connections = atoi(optarg); break;
        case RECORDS: opt.records = atoi(optarg); break;
        case VALUE: opt.value_bytes = atoi(optarg); break;
        case WARMUP: opt.warmup_s = atof(optarg); break;
        case SECONDS: opt.seconds = atof(optarg); break;
        case KILL: opt.kill_pid = atoi(optarg); break;
        case SIGNAL: opt.kill_signal = atoi(optarg); break;
        case KILL_WAIT: opt.kill_wait_s = atof(optarg); break;
        case TIMEOUT: opt.timeout_ns = (uint64_t)(atof(optarg) * 1e6); break;
        case RETRY: opt.retry_ns = (uint64_t)(atof(optarg) * 1e6); break;
        case CONNECT: opt.connect_s = atof(optarg); break;
        case TOPIC: opt.topic = optarg; break;
        case FIRST: opt.until_first_ack = true; break;
        case NUMBERS: opt.by_number = true; break;
        case RATE: opt.rate = atof(optarg); break;
        default: exit(2);
    }
    if (!opt.connections) opt.connections = opt.clients;
    if (optind != count || !opt.port_count || opt.clients < 1 || opt.clients > CLIENTS_MAX ||
        opt.connections < 1 || opt.connections > opt.clients || opt.records < 1 ||
        opt.records > 100000 || opt.value_bytes < 0)
        fail("bad options: --ports P,... is needed; 1 <= connections <= clients <= 4096");
}

static void prepare(void) {
    epoll = epoll_create1(EPOLL_CLOEXEC);
    clients = calloc((size_t)opt.clients, sizeof *clients);
    free_clients = calloc((size_t)opt.clients, sizeof *free_clients);
    links = calloc((size_t)opt.connections, sizeof *links);
    clients_per_link = (opt.clients + opt.connections - 1) / opt.connections;
    if (epoll < 0 || !clients || !free_clients || !links) fail("out of memory");
    for (int i = 0; i < opt.clients; i++) clients[i].request = produce_request(i);
    for (int i = 0; i < opt.connections; i++) {
        links[i].node = i % opt.port_count;
        links[i].order = calloc((size_t)clients_per_link, sizeof(int));
        if (!links[i].order) fail("out of memory");
    }
    now_ns = clock_ns();
}

int main(int count, char **words) {
    parse_options(count, words);
    prepare_tls();
    prepare();
    sending = opt.until_first_ack;
    if (!opt.until_first_ack) wait_for_connections();
    sending = true;
    if (opt.by_number) {
        serve_numbers();
        return 0;
    }
    for (int i = 0; i < opt.connections; i++)
        if (links[i].state == OPEN) start_clients(&links[i]);
    if (opt.rate > 0) start_schedule();
    run_for(opt.until_first_ack ? opt.connect_s : opt.warmup_s);
    if (opt.until_first_ack) {
        if (!first_ack_ns) fail("no acknowledgement in time");
        printf("{\"first_ack_ns\": %llu}\n", (unsigned long long)first_ack_ns);
        return 0;
    }
    measuring = true;
    struct usage before = read_usage(opt.pids, opt.pid_count);
    uint64_t begin = now_ns = clock_ns();
    if (opt.rate > 0) measured_from_ns = begin;
    run_for(opt.seconds);
    uint64_t end = now_ns;
    struct usage after = read_usage(opt.pids, opt.pid_count);
    measuring = false;
    uint64_t late = opt.rate > 0 ? count_unanswered(end) : 0;
    bool closed_loop = !opt.kill_pid && opt.rate <= 0;
    for (int i = 0; i < opt.clients && closed_loop; i++) /* still unanswered: counts for the maximum */
        if (clients[i].waiting && end - clients[i].sent_ns > longest_ns)
            longest_ns = end - clients[i].sent_ns;
    if (opt.kill_pid) {
        if (kill(opt.kill_pid, opt.kill_signal)) fail("the process to kill does not exist");
        killed_ns = now_ns = clock_ns();
        uint64_t limit = killed_ns + (uint64_t)(opt.kill_wait_s * 1e9);
        while (served_after_kill < opt.clients && now_ns < limit) step(1);
    }
    print_result((double)(end - begin) / 1e9, before, after);
    if (opt.rate > 0) printf(", \"rate\": %.1f, \"unanswered\": %llu", opt.rate, (unsigned long long)late);
    if (opt.kill_pid) print_failover(now_ns);
    printf("}\n");
    return 0;
}
