/*
 * A load that costs little itself: load HOST:PORT BROKER_PID SCALE. One JSON object a phase.
 *
 * It speaks to the broker as RocketMQ's client does, on one thread, and takes no answer on trust:
 * code, opaque and offset of each are looked at, and so is every record that is pulled. Whatever
 * is not as it should be ends the run with status 1.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define TOPIC "NativeLoad"
#define MAGIC 0xDAA320A7u
enum {
    BODY = 256,             // bytes
    BATCH = 32,             // messages, of a batch and of a pull
    CONNECTIONS = 8,        // of senders who wait for each answer
    OUTSTANDING = 1024,     // sends that one connection does not wait for
    QUEUES = 4,
    SEND = 310, SEND_BATCH = 320, PULL = 11,
    REQUEST_SIZE = BATCH * (BODY + 128) + 1024,
    RECEIVED_SIZE = 1 << 20,
    SILENCE_MS = 20000,
};

/* A request that was not answered yet. */
struct waiting { int32_t opaque; int queue; };

struct connection {
    int fd;
    char *in, *out;                 // received and not looked at; written and not sent
    size_t in_size, out_size, sent, out_room;
    struct waiting *waiting;        // by slot; an opaque's slot is its remainder by `slots`
    int *free, free_count, slots;
    int64_t requests;               // to be sent yet
    int queue;                      // of the next request
    int64_t next;                   // a pull: the offset that it goes on at
};

struct phase { const char *name; int code, connections, outstanding; int64_t requests; };

static int64_t stored[QUEUES];      // messages of each queue before the phase
static int64_t answered[QUEUES], offset_sum[QUEUES];    // of the phase
static struct sockaddr_in address;
static const char *broker_pid;
static uint64_t made;               // messages, for their ids
static char body[BODY];

static _Noreturn void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static void *room_for(void *old, size_t size)
{
    void *room = realloc(old, size);
    if (room == NULL)
        fail("no memory for %zu bytes", size);
    return room;
}

static int64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* ---- big-endian numbers of what is sent and received */

static char *put32(char *at, uint32_t number)
{
    number = htobe32(number);
    return mempcpy(at, &number, 4);
}

static char *put16(char *at, uint16_t number)
{
    number = htobe16(number);
    return mempcpy(at, &number, 2);
}

static uint32_t get32(const char *at)
{
    uint32_t number;
    memcpy(&number, at, 4);
    return be32toh(number);
}

static int64_t get64(const char *at)
{
    uint64_t number;
    memcpy(&number, at, 8);
    return (int64_t)be64toh(number);
}

/* ---- requests */

static char *put_unique_key(char *at)
{
    return at + sprintf(at, "7F000001%08X%016" PRIX64, (unsigned)getpid(), ++made);
}

static char *put_properties(char *at, const char *name_end, const char *value_end)
{
    at = put_unique_key(at + sprintf(at, "UNIQ_KEY%s", name_end));
    return at + sprintf(at, "%sWAIT%strue%s", value_end, name_end, value_end);
}

/* The messages of a batch, one behind the other. */
static char *put_batch(char *at)
{
    for (int i = 0; i < BATCH; i++) {
        char *begin = at, *properties = at + 20 + BODY + 2;
        char *end = put_properties(properties, "\x01", "\x02");
        at = put32(at, (uint32_t)(end - begin));
        at = put32(put32(put32(at, 0), 0), 0);
        at = mempcpy(put32(at, BODY), body, BODY);
        put16(at, (uint16_t)(end - properties));
        at = end;
    }
    return at;
}

static char *put_send_header(char *at, int code, int queue)
{
    at += sprintf(at,
        "\"a\":\"" TOPIC "Producer\",\"b\":\"" TOPIC "\",\"c\":\"TBW102\",\"d\":\"%d\",\"e\":\"%d\","
        "\"f\":\"0\",\"g\":\"%" PRId64 "\",\"h\":\"0\",\"i\":\"",
        QUEUES, queue, clock_ns(CLOCK_REALTIME) / 1000000);
    at = put_properties(at, "\\u0001", "\\u0002");
    return at + sprintf(at, "\",\"j\":\"0\",\"k\":\"false\",\"m\":\"%s\",\"n\":\"bench\"",
        code == SEND_BATCH ? "true" : "false");
}

/* Bit 2 of a pull's flags lets it wait for messages, bit 4 says that it has its subscription. */
static char *put_pull_header(char *at, int queue, int64_t offset)
{
    return at + sprintf(at,
        "\"bname\":\"bench\",\"commitOffset\":\"0\",\"consumerGroup\":\"" TOPIC "Consumer\","
        "\"expressionType\":\"TAG\",\"maxMsgNums\":\"%d\",\"queueId\":\"%d\",\"queueOffset\":\"%" PRId64
        "\",\"subVersion\":\"0\",\"subscription\":\"*\",\"suspendTimeoutMillis\":\"15000\","
        "\"sysFlag\":\"6\",\"topic\":\"" TOPIC "\"",
        BATCH, queue, offset);
}

/* Write one request behind those that wait to be sent. */
static void ask(struct connection *to, int code)
{
    if (to->out_room - to->out_size < REQUEST_SIZE) {
        to->out_room = 2 * to->out_room + REQUEST_SIZE;
        to->out = room_for(to->out, to->out_room);
    }
    int slot = to->free[--to->free_count];
    struct waiting *waiting = &to->waiting[slot];
    waiting->opaque += to->slots;
    waiting->queue = to->queue;
    char *frame = to->out + to->out_size, *at = frame + 8, *header = at;
    at += sprintf(at, "{\"code\":%d,\"extFields\":{", code);
    at = code == PULL ? put_pull_header(at, to->queue, to->next)
                      : put_send_header(at, code, to->queue);
    at += sprintf(at, "},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%" PRId32
        ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":493}", waiting->opaque);
    put32(frame + 4, (uint32_t)(at - header));
    if (code == SEND_BATCH)
        at = put_batch(at);
    else if (code == SEND)
        at = mempcpy(at, body, BODY);
    put32(frame, (uint32_t)(at - frame - 4));
    to->out_size += (size_t)(at - frame);
    to->requests--;
    if (code != PULL)
        to->queue = (to->queue + 1) % QUEUES;
}

/* ---- answers */

/* The number behind a name in a JSON header: `"code":` or `"queueOffset":"`. */
static int64_t number_of(const char *header, size_t size, const char *name)
{
    const char *at = memmem(header, size, name, strlen(name));
    if (at == NULL)
        fail("no %s in the answer %.*s", name, (int)size, header);
    return strtoll(at + strlen(name), NULL, 10);
}

/* A send's place must be one of those that this phase fills. */
static void take_place(int queue, int64_t offset, int messages)
{
    if (offset < stored[queue])
        fail("queue %d: a message at %" PRId64 ", where one was stored before", queue, offset);
    answered[queue] += messages;
    offset_sum[queue] += offset;
}

/* A pull's records must go on where the last one ended; takes what it brought. */
static void take_records(struct connection *from, const char *at, size_t size, int64_t next)
{
    int64_t first = from->next;
    for (const char *end = at + size; at < end; from->next++) {
        if (end - at < 28 || get32(at) > end - at || get32(at) < 28 || get32(at + 4) != MAGIC)
            fail("queue %d: no record at %" PRId64, from->queue, from->next);
        if (get32(at + 12) != (uint32_t)from->queue || get64(at + 20) != from->next)
            fail("queue %d: the record of queue %" PRIu32 " at %" PRId64 " in place of %" PRId64,
                from->queue, get32(at + 12), get64(at + 20), from->next);
        at += get32(at);
    }
    if (from->next != next || next == first)
        fail("queue %d: records from %" PRId64 " to %" PRId64 ", said to go on at %" PRId64,
            from->queue, first, from->next, next);
    answered[from->queue] += next - first;
    from->requests = stored[from->queue] > next;
}

/* Look at one answer; `frame` is what its length counts. */
static void take(struct connection *from, int code, const char *frame, size_t size)
{
    size_t header_size = get32(frame);
    const char *header = frame + 4;
    if (header_size > size - 4)
        fail("a header of %zu bytes in a frame of %zu", header_size, size);
    if (number_of(header, header_size, "\"code\":") != 0
            || (number_of(header, header_size, "\"flag\":") & 1) == 0)
        fail("refused: %.*s", (int)header_size, header);
    int64_t opaque = number_of(header, header_size, "\"opaque\":");
    struct waiting *waiting = &from->waiting[(uint64_t)opaque % (unsigned)from->slots];
    if (waiting->opaque != opaque || waiting->queue < 0)
        fail("nobody waits for %.*s", (int)header_size, header);
    if (code == PULL)
        take_records(from, header + header_size, size - 4 - header_size,
            number_of(header, header_size, "\"nextBeginOffset\":\""));
    else
        take_place(waiting->queue, number_of(header, header_size, "\"queueOffset\":\""),
            code == SEND_BATCH ? BATCH : 1);
    waiting->queue = -1;
    from->free[from->free_count++] = (int)(waiting - from->waiting);
}

/* ---- connections */

static void open_connection(struct connection *to, int epoll, int slots, int64_t requests, int queue)
{
    memset(to, 0, sizeof *to);
    to->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (to->fd < 0 || connect(to->fd, (struct sockaddr *)&address, sizeof address) != 0)
        fail("cannot connect: %s", strerror(errno));
    setsockopt(to->fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = to};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, to->fd, &event) != 0)
        fail("epoll: %s", strerror(errno));
    to->in = room_for(NULL, RECEIVED_SIZE + 1);
    to->in[RECEIVED_SIZE] = 0;
    to->waiting = room_for(NULL, (size_t)slots * sizeof *to->waiting);
    to->free = room_for(NULL, (size_t)slots * sizeof *to->free);
    to->slots = slots;
    for (; to->free_count < slots; to->free_count++) {
        to->free[to->free_count] = to->free_count;
        to->waiting[to->free_count] = (struct waiting){to->free_count, -1};
    }
    to->requests = requests;
    to->queue = queue;
}

static void close_connection(struct connection *each)
{
    close(each->fd);
    free(each->in);
    free(each->out);
    free(each->waiting);
    free(each->free);
}

static bool at_work(const struct connection *each)
{
    return each->requests > 0 || each->free_count < each->slots;
}

/* Send as many requests as may be outstanding; what the socket does not take waits. */
static void send_requests(struct connection *to, int code)
{
    while (to->requests > 0 && to->free_count > 0)
        ask(to, code);
    while (to->sent < to->out_size) {
        ssize_t size = send(to->fd, to->out + to->sent, to->out_size - to->sent,
            MSG_NOSIGNAL | MSG_DONTWAIT);
        if (size < 0 && errno == EAGAIN)
            return;
        if (size < 0)
            fail("cannot send: %s", strerror(errno));
        to->sent += (size_t)size;
    }
    to->sent = to->out_size = 0;
}

/* Take the answers that have come; less than there is room for is all of it. */
static void receive_answers(struct connection *from, int code)
{
    bool more = true;
    while (more) {
        size_t room = RECEIVED_SIZE - from->in_size;
        ssize_t got = recv(from->fd, from->in + from->in_size, room, MSG_DONTWAIT);
        if (got < 0 && errno == EAGAIN)
            return;
        if (got <= 0)
            fail("the broker has closed: %s", got < 0 ? strerror(errno) : "end of stream");
        more = (size_t)got == room;
        from->in_size += (size_t)got;
        size_t at = 0;
        while (from->in_size - at >= 4) {
            size_t size = get32(from->in + at);
            if (size < 4 || size + 4 > RECEIVED_SIZE)
                fail("a frame of %zu bytes", size);
            if (from->in_size - at < size + 4)
                break;
            take(from, code, from->in + at + 4, size);
            at += size + 4;
        }
        from->in_size -= at;
        memmove(from->in, from->in + at, from->in_size);
    }
}

/* ---- phases */

/* Let every connection do its requests. */
static void work(const struct phase *phase)
{
    struct connection connections[CONNECTIONS];
    struct epoll_event events[CONNECTIONS];
    int epoll = epoll_create1(0), count = phase->connections, working = count;
    for (int i = 0; i < count; i++) {
        bool pulls = phase->code == PULL;
        int64_t requests = pulls ? stored[i] > 0 : phase->requests / count;
        open_connection(&connections[i], epoll, phase->outstanding, requests, i % QUEUES);
    }
    while (working > 0) {
        int ready = epoll_wait(epoll, events, CONNECTIONS, SILENCE_MS);
        if (ready <= 0)
            fail("%s: no answer for %d s", phase->name, SILENCE_MS / 1000);
        for (int i = 0; i < ready; i++) {
            if (events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP))
                receive_answers(events[i].data.ptr, phase->code);
            send_requests(events[i].data.ptr, phase->code);
        }
        working = 0;
        for (int i = 0; i < count; i++)
            working += at_work(&connections[i]);
    }
    for (int i = 0; i < count; i++)
        close_connection(&connections[i]);
    close(epoll);
}

/* The phase's messages stand one behind the other in each queue: none lost, none twice. */
static int64_t check_offsets(const struct phase *phase)
{
    int64_t messages = 0;
    for (int i = 0; i < QUEUES; i++) {
        int64_t step = phase->code == SEND_BATCH ? BATCH : 1, sends = answered[i] / step;
        int64_t sum = sends * stored[i] + step * (sends * (sends - 1) / 2);
        if (phase->code == PULL && answered[i] != stored[i])
            fail("queue %d: %" PRId64 " of %" PRId64 " messages came", i, answered[i], stored[i]);
        if (phase->code != PULL && offset_sum[i] != sum)
            fail("queue %d: the offsets of %s do not go on", i, phase->name);
        if (phase->code != PULL)
            stored[i] += answered[i];
        messages += answered[i];
        answered[i] = offset_sum[i] = 0;
    }
    return messages;
}

/* User and system time of the broker, in ticks of 10 ms. */
static int64_t broker_ticks(void)
{
    char path[64], text[2048];
    unsigned long long user, kernel;
    snprintf(path, sizeof path, "/proc/%s/stat", broker_pid);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        fail("no process %s", broker_pid);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    char *behind_name = strrchr(text, ')');
    if (behind_name == NULL || sscanf(behind_name,
            ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &kernel) != 2)
        fail("%s is not as proc(5) says", path);
    return (int64_t)(user + kernel);
}

static int64_t own_ns(void)
{
    return clock_ns(CLOCK_PROCESS_CPUTIME_ID);
}

static void measure(const struct phase *phase)
{
    int64_t ticks = broker_ticks(), own = own_ns(), began = clock_ns(CLOCK_MONOTONIC);
    work(phase);
    double seconds = (clock_ns(CLOCK_MONOTONIC) - began) / 1e9;
    double cpu = (double)(broker_ticks() - ticks) / (double)sysconf(_SC_CLK_TCK);
    printf("{\"phase\":\"%s\",\"messages\":%" PRId64 ",\"seconds\":%.4f,\"cpu_seconds\":%.2f,"
           "\"own_cpu_seconds\":%.6f}\n",
        phase->name, check_offsets(phase), seconds, cpu, (own_ns() - own) / 1e9);
}

static void warm(struct phase phase, double part)
{
    phase.requests = (int64_t)((double)phase.requests * part);
    work(&phase);
    check_offsets(&phase);
}

int main(int count, char **arguments)
{
    char *colon = count == 4 ? strchr(arguments[1], ':') : NULL;
    double scale = count == 4 ? atof(arguments[3]) : 0;
    if (colon == NULL || scale <= 0)
        fail("load HOST:PORT BROKER_PID SCALE");
    *colon = 0;
    address.sin_family = AF_INET;
    address.sin_port = htons((uint16_t)atoi(colon + 1));
    if (inet_pton(AF_INET, arguments[1], &address.sin_addr) != 1)
        fail("%s is no address in numbers", arguments[1]);
    broker_pid = arguments[2];
    setvbuf(stdout, NULL, _IOLBF, 0);
    // the first send makes the topic
    warm((struct phase){"topic", SEND, 1, 1, QUEUES}, 1);
    struct phase phases[] = {
        {"sync", SEND, CONNECTIONS, 1, (int64_t)(60000 * scale)},
        {"async", SEND, 1, OUTSTANDING, (int64_t)(300000 * scale)},
        {"batch", SEND_BATCH, CONNECTIONS, 1, (int64_t)(16000 * scale)},
        {"pull", PULL, QUEUES, 1, 0},
    };
    for (int i = 0; i < 3; i++)
        warm(phases[i], 0.1);
    for (int i = 0; i < 4; i++)
        measure(&phases[i]);
    return 0;
}
