// floor: what any broker of this shape must spend. A bare epoll echo that speaks as much MQTT 3.1.1 as mqbench needs:
// it takes the PUBLISH of publisher N, answers PUBACK and hands it to the subscriber of "<prefix>/N/...", whose PUBACK
// it reads and forgets. No topics beyond that, no sessions, no limits, no checks.
// build: cc -O2 -pthread -o floor floor.c      run: floor PORT [FILE]
// With FILE every loop pass that received something ends in one write + fdatasync on a thread before anything of it is
// answered; while one is on its way the next one gathers. That is group commit with nothing around it.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PAIRS = 20000, EVENTS = 1024, CONNACK = 1, PUBLISH = 3, PUBACK = 4, SUBSCRIBE = 8 };

typedef struct { uint8_t *at; size_t length, capacity; } buffer;
typedef struct { int fd, marked, waits, next_id; buffer in, out; } client;
typedef struct { client *to; uint32_t from, length; } answer; // bytes of `batch.bytes` that go to a client
typedef struct { buffer bytes; answer *answers; size_t count, capacity; size_t published; } batch;

static client *subscribers[PAIRS];
static client *dirty[2 * PAIRS];
static size_t dirty_count;
static batch gathering, in_flight; // in_flight belongs to the writer thread between start and wake
static int loop, wake, start, journal = -1, writing;

static void grow(buffer *b, size_t more) {
  if (b->length + more <= b->capacity) return;
  b->capacity = (b->length + more) * 2;
  b->at = realloc(b->at, b->capacity);
}
static void put(buffer *b, const void *from, size_t length) {
  grow(b, length);
  memcpy(b->at + b->length, from, length);
  b->length += length;
}
static void drop(buffer *b, size_t length) {
  memmove(b->at, b->at + length, b->length - length);
  b->length -= length;
}
static void watch(client *c, int writable) {
  struct epoll_event e = {.events = EPOLLIN | (writable ? EPOLLOUT : 0), .data.ptr = c};
  epoll_ctl(loop, EPOLL_CTL_MOD, c->fd, &e);
  c->waits = writable;
}
static void flush(client *c) {
  ssize_t sent = c->fd < 0 ? (ssize_t)c->out.length : send(c->fd, c->out.at, c->out.length, MSG_NOSIGNAL);
  if (sent > 0) drop(&c->out, sent);
  if (c->fd >= 0 && (c->out.length > 0) != c->waits) watch(c, c->out.length > 0);
}
static void to_client(client *c, const void *from, size_t length) {
  if (!c->marked) c->marked = 1, dirty[dirty_count++] = c;
  put(&c->out, from, length);
}
static void flush_all(void) {
  for (size_t i = 0; i < dirty_count; i++) dirty[i]->marked = 0, flush(dirty[i]);
  dirty_count = 0;
}
// An answer to something received: at once, or when the batch is on disk.
static void say(client *to, const void *from, size_t length) {
  if (journal < 0) { to_client(to, from, length); return; }
  batch *b = &gathering;
  if (b->count == b->capacity) b->answers = realloc(b->answers, (b->capacity = b->capacity * 2 + 64) * sizeof *b->answers);
  b->answers[b->count++] = (answer){to, b->bytes.length, length};
  put(&b->bytes, from, length);
}

static void *writer(void *unused) {
  uint64_t one = 1;
  while (read(start, &one, 8) == 8) {
    if (write(journal, in_flight.bytes.at, in_flight.bytes.length) < 0 || fdatasync(journal)) { perror("journal"); exit(1); }
    one = 1;
    if (write(wake, &one, 8) < 0) exit(1);
  }
  return unused;
}
static void commit(void) {
  if (writing || !gathering.count) return;
  batch spare = in_flight;
  uint64_t one = 1;
  in_flight = gathering;
  gathering = spare;
  gathering.bytes.length = gathering.count = gathering.published = 0;
  if (!in_flight.published) { // nothing to make durable
    for (size_t i = 0; i < in_flight.count; i++) to_client(in_flight.answers[i].to, in_flight.bytes.at + in_flight.answers[i].from, in_flight.answers[i].length);
    return;
  }
  writing = 1;
  if (write(start, &one, 8) < 0) exit(1);
}
static void committed(void) {
  uint64_t count;
  if (read(wake, &count, 8) < 0) exit(1);
  writing = 0;
  for (size_t i = 0; i < in_flight.count; i++) to_client(in_flight.answers[i].to, in_flight.bytes.at + in_flight.answers[i].from, in_flight.answers[i].length);
}

static int pair_of(const uint8_t *topic, size_t length) { // the number after the first slash
  const uint8_t *slash = memchr(topic, '/', length);
  int pair = slash ? atoi((const char *)slash + 1) : 0;
  return pair < 0 || pair >= PAIRS ? 0 : pair;
}
static void publish(client *c, uint8_t *packet, size_t head, size_t length) {
  int qos = packet[0] >> 1 & 3;
  size_t topic = packet[head] << 8 | packet[head + 1], id = head + 2 + topic;
  client *to = subscribers[pair_of(packet + head + 2, topic)];
  gathering.published += qos > 0;
  if (qos) {
    uint8_t ack[4] = {PUBACK << 4, 2, packet[id], packet[id + 1]};
    say(c, ack, 4);
  }
  if (!to) return;
  if (qos) {
    to->next_id = to->next_id % 65535 + 1;
    packet[id] = to->next_id >> 8, packet[id + 1] = to->next_id;
  }
  say(to, packet, length);
}
static void handle(client *c, uint8_t *packet, size_t head, size_t length) {
  int type = packet[0] >> 4;
  if (type == CONNACK) { uint8_t ok[4] = {0x20, 2, 0, 0}; to_client(c, ok, 4); }
  else if (type == PUBLISH) publish(c, packet, head, length);
  else if (type == SUBSCRIBE) {
    uint8_t ok[5] = {0x90, 3, packet[head], packet[head + 1], packet[length - 1]};
    subscribers[pair_of(packet + head + 4, length - head - 5)] = c;
    to_client(c, ok, 5);
  }
}
static void parse(client *c) {
  size_t at = 0;
  while (c->in.length - at >= 2) {
    size_t i = at + 1, rest = 0, shift = 0, whole = 0;
    while (i < c->in.length && !whole) rest |= (size_t)(c->in.at[i] & 127) << shift, shift += 7, whole = !(c->in.at[i++] & 128);
    if (!whole || c->in.length - i < rest) break;
    handle(c, c->in.at + at, i - at, i - at + rest);
    at = i + rest;
  }
  drop(&c->in, at);
}
static void gone(client *c) {
  for (int i = 0; i < PAIRS; i++) if (subscribers[i] == c) subscribers[i] = NULL;
  close(c->fd);
  c->fd = -1; // a batch may still name it: it stays allocated
}
static void receive(client *c) {
  grow(&c->in, 65536);
  ssize_t got = recv(c->fd, c->in.at + c->in.length, 65536, 0);
  if (got < 0 && errno == EAGAIN) return;
  if (got <= 0) { gone(c); return; }
  c->in.length += got;
  parse(c);
}
static void welcome(int door) {
  int fd = accept4(door, NULL, NULL, SOCK_NONBLOCK), one = 1;
  if (fd < 0) return;
  client *c = calloc(1, sizeof *c);
  struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
  c->fd = fd;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  epoll_ctl(loop, EPOLL_CTL_ADD, fd, &e);
}

int main(int count, char **arguments) {
  if (count < 2) return fprintf(stderr, "usage: floor PORT [FILE]\n"), 2;
  int door = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(atoi(arguments[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  setsockopt(door, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(door, (void *)&here, sizeof here) || listen(door, 1024)) return perror("listen"), 1;
  loop = epoll_create1(0);
  wake = eventfd(0, EFD_NONBLOCK), start = eventfd(0, 0);
  if (count > 2) {
    pthread_t thread;
    if ((journal = open(arguments[2], O_CREAT | O_WRONLY | O_TRUNC, 0600)) < 0) return perror(arguments[2]), 1;
    pthread_create(&thread, NULL, writer, NULL);
  }
  struct epoll_event e = {.events = EPOLLIN, .data.ptr = &door}, events[EVENTS];
  epoll_ctl(loop, EPOLL_CTL_ADD, door, &e);
  e.data.ptr = &wake;
  epoll_ctl(loop, EPOLL_CTL_ADD, wake, &e);
  fprintf(stderr, "ready\n");
  while (1) {
    int ready = epoll_wait(loop, events, EVENTS, -1);
    for (int i = 0; i < ready; i++) {
      void *what = events[i].data.ptr;
      if (what == &door) welcome(door);
      else if (what == &wake) committed();
      else if (((client *)what)->fd >= 0) {
        if (events[i].events & EPOLLOUT) flush(what);
        if (events[i].events & ~EPOLLOUT) receive(what);
      }
    }
    commit();
    flush_all();
  }
}
