/* A load generator whose own cost does not show: connections in a closed loop, one thread, epoll.
 *
 *   stream_load PORT PATH BODY_FILE CONNECTIONS REQUESTS RAMP_MICROSECONDS
 *
 * Each connection begins its share of the ramp after the start, and then sends REQUESTS requests, one after the other. In
 * the body, "########" becomes a number that no other request has. Prints one JSON object: what each stream's events did.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 1 << 16, READ_BYTES = 1 << 18, ITL_BINS = 20000 }; /* bins of 0.05 ms: 1 s */
enum state { HEAD, SIZE, DATA, DATA_END, LAST };

struct connection {
    int fd;
    enum state state;
    int is_busy, status, has_done, num_sent, num_events;
    long rest;         /* bytes left of the chunk */
    char line[LINE_BYTES]; /* of the event stream; may go on in the next chunk */
    char frame[256];       /* of the head, or around chunks */
    int line_bytes, frame_bytes;
    int64_t begin_us, sent_us, last_us;
};

static struct sockaddr_in address;
static const char *path, *body;
static int poll_fd, num_requests, num_ended, num_failed, num_ttft;
static long num_events, serial;
static int64_t *ttft_us;
static long itl_bins[ITL_BINS + 1];

static void die(const char *what) { perror(what); exit(1); }

static int64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

static void dial(struct connection *c) {
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address)) die("connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, c->fd, &event)) die("epoll_ctl");
}

static void send_request(struct connection *c) {
    static char request[1 << 20], text[1 << 20];
    strcpy(text, body);
    char number[32], *place = strstr(text, "########");
    snprintf(number, sizeof number, "%08ld", ++serial);
    if (place) memcpy(place, number, 8);
    int num_bytes = snprintf(request, sizeof request,
                             "POST %s HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s",
                             path, strlen(text), text);
    if (c->fd < 0) dial(c);
    c->state = HEAD, c->line_bytes = c->frame_bytes = 0, c->status = 0, c->has_done = 0, c->num_events = 0, c->is_busy = 1, c->num_sent++;
    c->sent_us = c->last_us = now_us();
    if (send(c->fd, request, num_bytes, MSG_NOSIGNAL) != num_bytes) die("send");
}

static void end_answer(struct connection *c) {
    c->is_busy = 0;
    num_ended++;
    if (c->status != 200 || !c->has_done || !c->num_events) {
        if (!num_failed++) fprintf(stderr, "a request failed: status %d, %d events, %s\n", c->status, c->num_events, c->line);
    }
    if (c->num_sent < num_requests) send_request(c);
}

/* An event with output: a "content" or "text" that is not empty. */
static int has_output(const char *line) {
    const char *names[] = {"\"content\":", "\"text\":"};
    for (int i = 0; i < 2; i++) {
        const char *value = strstr(line, names[i]);
        if (!value) continue;
        value += strlen(names[i]);
        while (*value == ' ') value++;
        if (value[0] == '"' && value[1] != '"') return 1;
    }
    return 0;
}

static void take_line(struct connection *c, int64_t read_us) {
    c->line[c->line_bytes] = 0;
    c->line_bytes = 0;
    if (!strncmp(c->line, "data: [DONE]", 12)) c->has_done = 1;
    if (strncmp(c->line, "data: {", 7) || !has_output(c->line)) return;
    int64_t gap_us = read_us - c->last_us;
    if (c->num_events++) itl_bins[gap_us / 50 < ITL_BINS ? gap_us / 50 : ITL_BINS]++;
    else ttft_us[num_ttft++] = gap_us;
    c->last_us = read_us;
    num_events++;
}

/* Takes bytes of one answer, framing and all. */
static void take(struct connection *c, const char *bytes, int num_bytes, int64_t read_us) {
    int at = 0;
    while (at < num_bytes && c->is_busy) {
        if (c->state == DATA) {
            char byte = bytes[at++];
            if (byte == '\n') take_line(c, read_us);
            else if (c->line_bytes < LINE_BYTES - 1) c->line[c->line_bytes++] = byte;
            if (--c->rest == 0) c->state = DATA_END;
            continue;
        }
        char byte = bytes[at++];
        if (byte != '\n') {
            if (c->frame_bytes < (int)sizeof c->frame - 1 && byte != '\r') c->frame[c->frame_bytes++] = byte;
            continue;
        }
        c->frame[c->frame_bytes] = 0;
        int is_empty = c->frame_bytes == 0;
        c->frame_bytes = 0;
        switch (c->state) {
        case HEAD:
            if (!c->status) c->status = atoi(c->frame + 9);
            else if (is_empty && c->status != 200) { close(c->fd); c->fd = -1; end_answer(c); return; }
            else if (is_empty) c->state = SIZE;
            break;
        case SIZE:
            c->rest = strtol(c->frame, NULL, 16);
            c->state = c->rest ? DATA : LAST;
            break;
        case LAST:
            if (is_empty) end_answer(c);
            break;
        default: /* the line end after a chunk */
            c->state = SIZE;
        }
    }
}

static void print_result(int64_t begin_us, int64_t end_us) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double cpu = usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
    printf("{\"seconds\":%.6f,\"num_requests\":%d,\"num_failed\":%d,\"num_events\":%ld,\"own_cpu_seconds\":%.3f,\"ttft_us\":[",
           (end_us - begin_us) / 1e6, num_ended, num_failed, num_events, cpu);
    for (int i = 0; i < num_ttft; i++) printf("%s%lld", i ? "," : "", (long long)ttft_us[i]);
    printf("],\"itl_bins_50us\":{");
    for (int i = 0, first = 1; i <= ITL_BINS; i++)
        if (itl_bins[i]) printf("%s\"%d\":%ld", first ? "" : ",", i, itl_bins[i]), first = 0;
    printf("}}\n");
}

int main(int argc, char **argv) {
    if (argc != 7) return fprintf(stderr, "usage: %s PORT PATH BODY_FILE CONNECTIONS REQUESTS RAMP_MICROSECONDS\n", argv[0]), 2;
    static char text[1 << 19], bytes[READ_BYTES];
    FILE *file = fopen(argv[3], "r");
    if (!file || !fread(text, 1, sizeof text - 1, file)) die(argv[3]);
    path = argv[2], body = text, num_requests = atoi(argv[5]);
    int num_connections = atoi(argv[4]);
    int64_t ramp_us = atoll(argv[6]);
    address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    poll_fd = epoll_create1(0);
    serial = (long)getpid() % 1000 * 100000;
    ttft_us = calloc((size_t)num_connections * num_requests, sizeof *ttft_us);
    struct connection *connections = calloc(num_connections, sizeof *connections);
    for (int i = 0; i < num_connections; i++) connections[i].fd = -1, dial(&connections[i]);
    int64_t begin_us = now_us();
    for (int i = 0; i < num_connections; i++) connections[i].begin_us = begin_us + ramp_us * i / num_connections;
    int num_begun = 0;
    while (num_ended < num_connections * num_requests) {
        int64_t now = now_us();
        while (num_begun < num_connections && connections[num_begun].begin_us <= now) send_request(&connections[num_begun++]);
        int64_t wait_us = num_begun < num_connections ? connections[num_begun].begin_us - now : 1000000;
        struct timespec wait = {wait_us / 1000000, wait_us % 1000000 * 1000};
        struct epoll_event events[256];
        int num_ready = epoll_pwait2(poll_fd, events, 256, &wait, NULL);
        for (int i = 0; i < num_ready; i++) {
            struct connection *c = events[i].data.ptr;
            ssize_t num_bytes = recv(c->fd, bytes, sizeof bytes, MSG_DONTWAIT);
            if (num_bytes < 0 && errno == EAGAIN) continue;
            if (num_bytes > 0) { take(c, bytes, num_bytes, now_us()); continue; }
            close(c->fd), c->fd = -1;
            if (c->is_busy) c->status = -1, end_answer(c);
        }
    }
    print_result(begin_us, now_us());
    return 0;
}
