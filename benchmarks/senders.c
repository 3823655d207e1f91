// senders: many TCP senders of small messages, as low-power devices are. One thread, epoll.
// build: cc -O2 -o senders senders.c
// run:   senders -m arrive|burst|load -P frame|stomp|mqtt|plain -p PORT -n SENDERS [-w WINDOW] [-t SECONDS] [-x TOPIC] [-b PIDS]
//   arrive: SENDERS come evenly within one second; each connects, says who it is, sends one message, waits for the answer
//   burst:  all are connected and let in; then all send one message at the same moment
//   load:   each has WINDOW messages unanswered for SECONDS
// A body has 24 bytes: sender u32, number u32, 16 of padding. A lost connection is made again after 100 ms, and what was
// not answered is sent again under its number (arrive and burst): of that the servers may tell repeats, or not.
// Prints one line of JSON: answered, the time from the first begin to the last answer, and of the times from begin (arrive:
// the sender comes; burst: it sends) to answer the mean, p50, p99 and the longest, in ms; load: messages a second, and a
// second of the CPU time of PIDS.
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

enum { BODY = 24, EVENTS = 1024, CAPACITY = 4096, PAUSE_NS = 100000000 };
enum { WAITS, CONNECTS, GREETS, READY, DONE };

typedef struct {
  int fd, state, index, in_flight;
  uint32_t next; // number of the next message
  uint64_t begun, again_at, length;
  uint8_t in[CAPACITY];
} sender;

static const char *mode = "arrive", *protocol = "frame", *topic = "n7", *pids = "";
static int port, count = 1000, window = 16, seconds = 5, loop, measuring;
static uint64_t answered, sent, resent, reconnected, refused, *took;
static sender *senders;

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}
static int is(const char *name) { return !strcmp(protocol, name); }

// CRC-8, polynomial 0x07, as frames of version 2 have it
static uint8_t crc(const uint8_t *data, size_t length) {
  uint8_t found = 0;
  for (size_t i = 0; i < length; i++) {
    found ^= data[i];
    for (int bit = 0; bit < 8; bit++) found = found & 0x80 ? found << 1 ^ 0x07 : found << 1;
  }
  return found;
}
static void u16(uint8_t *at, unsigned value) { at[0] = value >> 8, at[1] = value; }
static void u32(uint8_t *at, uint32_t value) { u16(at, value >> 16), u16(at + 2, value); }
static size_t text(uint8_t *at, const char *value) {
  u16(at, strlen(value));
  memcpy(at + 2, value, strlen(value));
  return 2 + strlen(value);
}
static size_t frame(uint8_t *out, int index, unsigned opcode, const uint8_t *body, size_t length) {
  char sn[16];
  size_t named = sprintf(sn, "lock-%05d", index), at = 0;
  out[at++] = 2;
  u32(out + at, 9 + named + length), at += 4;
  u16(out + at, opcode), at += 2;
  out[at++] = named;
  memcpy(out + at, sn, named), at += named;
  if (length) memcpy(out + at, body, length), at += length;
  out[at] = crc(out, at);
  return at + 1;
}
static size_t greeting(sender *s, uint8_t *out) {
  uint8_t body[256];
  size_t at = 0;
  if (is("frame")) {
    memset(body, 0, 4); // no user, no password
    return frame(out, s->index, 1, body, 4);
  }
  if (is("stomp")) return sprintf((char *)out, "CONNECT\naccept-version:1.2\nhost:localhost\nheart-beat:0,0\n\n") + 1;
  if (is("mqtt")) {
    char id[16];
    sprintf(id, "lock-%05d", s->index);
    at += text(body, "MQTT"), body[at++] = 4, body[at++] = 2, body[at++] = 0, body[at++] = 0, at += text(body + at, id);
    out[0] = 0x10, out[1] = at;
    memcpy(out + 2, body, at);
    return at + 2;
  }
  return 0;
}
static size_t message(sender *s, uint32_t number, uint8_t *out) {
  uint8_t body[512], payload[BODY] = {0};
  size_t at = 0;
  u32(payload, s->index), u32(payload + 4, number);
  if (is("frame")) {
    u32(body, number), at = 4 + text(body + 4, topic);
    memcpy(body + at, payload, BODY);
    return frame(out, s->index, 2, body, at + BODY);
  }
  if (is("stomp")) {
    at = sprintf((char *)out, "SEND\ndestination:/queue/%s\npersistent:true\nreceipt:%u\ncontent-length:%d\n\n", topic, number, BODY);
    memcpy(out + at, payload, BODY);
    out[at + BODY] = 0;
    return at + BODY + 1;
  }
  if (is("mqtt")) {
    at = text(body, topic);
    u16(body + at, number % 65535 + 1), at += 2;
    memcpy(body + at, payload, BODY), at += BODY;
    out[0] = 0x32, out[1] = at;
    memcpy(out + 2, body, at);
    return at + 2;
  }
  memcpy(out, payload, BODY);
  return BODY;
}
static void put(sender *s, const uint8_t *data, size_t length) {
  ssize_t out = send(s->fd, data, length, MSG_NOSIGNAL);
  if (out != (ssize_t)length && (out >= 0 || (errno != EPIPE && errno != ECONNRESET))) perror("send"), exit(1);
}

// Take the next answer off the buffer. Returns its bytes, 0 if it is not whole; `kind`: 'g' let in, 'a' answered, '-' else.
static size_t answer(sender *s, char *kind) {
  uint8_t *in = s->in;
  *kind = '-';
  if (is("plain")) return *kind = 'a', s->length > 0;
  if (is("mqtt")) {
    if (s->length < 2 || s->length < 2u + in[1]) return 0;
    *kind = in[0] >> 4 == 2 && !in[3] ? 'g' : in[0] >> 4 == 4 ? 'a' : '-';
    return 2 + in[1];
  }
  if (is("stomp")) {
    uint8_t *end = memchr(in, 0, s->length);
    if (!end) return 0;
    uint8_t *at = in;
    while (at < end && *at == '\n') at++; // between frames
    *kind = !memcmp(at, "CONNECTED", 9) ? 'g' : !memcmp(at, "RECEIPT", 7) ? 'a' : '-';
    return end - in + 1;
  }
  if (s->length < 9) return 0;
  size_t length = (size_t)in[1] << 24 | in[2] << 16 | in[3] << 8 | in[4];
  if (s->length < length) return 0;
  unsigned opcode = in[5] << 8 | in[6];
  uint8_t *body = in + 8 + in[7];
  if (opcode == 0x8001 && !body[0]) *kind = 'g';
  if (opcode == 0x8002) *kind = body[4] ? '!' : 'a';
  return length;
}

static void arm(sender *s, int events) {
  struct epoll_event e = {.events = events, .data.ptr = s};
  epoll_ctl(loop, EPOLL_CTL_MOD, s->fd, &e);
}
static void come(sender *s) {
  int one = 1;
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  s->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  if (s->fd < 0) perror("socket"), exit(1);
  setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  s->state = CONNECTS, s->length = 0;
  struct epoll_event e = {.events = EPOLLOUT, .data.ptr = s};
  epoll_ctl(loop, EPOLL_CTL_ADD, s->fd, &e);
  connect(s->fd, (void *)&to, sizeof to); // what it says is known when it is writable
}
static void lost(sender *s) {
  close(s->fd);
  if (s->state == DONE) return;
  if (!strcmp(mode, "load")) fprintf(stderr, "sender %d: connection lost\n", s->index), exit(1);
  reconnected++;
  s->state = WAITS, s->again_at = now() + PAUSE_NS;
}
static void send_next(sender *s) {
  uint8_t out[1024];
  sent++, s->in_flight++;
  put(s, out, message(s, s->next++, out));
}
static void let_in(sender *s) {
  uint8_t out[1024];
  s->state = READY;
  if (s->in_flight) resent++, put(s, out, message(s, s->next - 1, out)); // the one that was not answered
  else if (!strcmp(mode, "arrive")) send_next(s);
}
static void connected(sender *s) {
  uint8_t out[1024];
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error) return lost(s);
  arm(s, EPOLLIN);
  size_t length = greeting(s, out);
  s->state = GREETS;
  if (length) put(s, out, length);
  else let_in(s);
}
static void was_answered(sender *s) {
  s->in_flight--;
  if (!strcmp(mode, "load")) {
    answered += measuring;
    send_next(s);
    return;
  }
  took[answered++] = now() - s->begun;
  s->state = DONE;
}
static void readable(sender *s) {
  ssize_t got = read(s->fd, s->in + s->length, CAPACITY - s->length);
  if (got <= 0) {
    if (got == 0 || errno != EAGAIN) lost(s);
    return;
  }
  s->length += got;
  char kind;
  for (size_t length; s->length && (length = answer(s, &kind)); s->length -= length, memmove(s->in, s->in + length, s->length)) {
    if (kind == 'g') let_in(s);
    else if (kind == 'a' && s->state == READY) was_answered(s);
    else if (kind == '!') refused++;
  }
}
static void turn(int wait_ms) {
  static struct epoll_event events[EVENTS];
  int ready = epoll_wait(loop, events, EVENTS, wait_ms);
  for (int i = 0; i < ready; i++) {
    sender *s = events[i].data.ptr;
    if (s->state == CONNECTS) connected(s);
    else if (events[i].events & EPOLLIN || events[i].events & (EPOLLHUP | EPOLLERR)) readable(s);
  }
}
static void come_again(void) {
  uint64_t time = now();
  if (!reconnected) return;
  for (int i = 0; i < count; i++)
    if (senders[i].state == WAITS && senders[i].again_at && senders[i].again_at <= time) senders[i].again_at = 0, come(senders + i);
}
static double cpu_s(void) {
  double total = 0;
  char list[256], file[64], line[1024];
  snprintf(list, sizeof list, "%s", pids);
  for (char *pid = strtok(list, ","); pid; pid = strtok(NULL, ",")) {
    snprintf(file, sizeof file, "/proc/%s/stat", pid);
    FILE *stat = fopen(file, "r");
    if (!stat) continue;
    line[fread(line, 1, sizeof line - 1, stat)] = 0;
    fclose(stat);
    unsigned long user, system;
    sscanf(strrchr(line, ')') + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system);
    total += (user + system) / (double)sysconf(_SC_CLK_TCK);
  }
  return total;
}
static int later(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}
static double ms(uint64_t ns) { return ns / 1e6; }

static void all_connected(void) {
  int ready = 0, begun = 0;
  while (ready < count) {
    while (begun < count && begun - ready < 200) come(senders + begun++);
    turn(100);
    come_again();
    ready = 0;
    for (int i = 0; i < begun; i++) ready += senders[i].state == READY;
  }
}
static void report_times(uint64_t begun) {
  uint64_t end = now(), sum = 0;
  qsort(took, answered, sizeof *took, later);
  for (uint64_t i = 0; i < answered; i++) sum += took[i];
  printf("{\"answered\": %lu, \"refused\": %lu, \"reconnected\": %lu, \"resent\": %lu, \"total_ms\": %.3f, \"mean_ms\": %.3f, "
         "\"p50_ms\": %.3f, \"p99_ms\": %.3f, \"max_ms\": %.3f}\n",
         answered, refused, reconnected, resent, ms(end - begun), answered ? ms(sum) / answered : 0, ms(took[answered / 2]),
         ms(took[answered * 99 / 100]), ms(took[answered ? answered - 1 : 0]));
}
static void arrive(void) {
  uint64_t begun = now(), until = begun + 120000000000ull;
  for (int i = 0; answered < (uint64_t)count && now() < until;) {
    for (; i < count && begun + i * 1000000000ull / count <= now(); i++) senders[i].begun = begun + i * 1000000000ull / count, come(senders + i);
    turn(i < count ? 0 : 5);
    come_again();
  }
  report_times(begun);
}
static void burst(void) {
  all_connected();
  uint64_t begun = now(), until = begun + 120000000000ull;
  for (int i = 0; i < count; i++) senders[i].begun = begun, send_next(senders + i);
  while (answered < (uint64_t)count && now() < until) turn(5), come_again();
  report_times(begun);
}
static void load(void) {
  all_connected();
  for (int i = 0; i < count; i++)
    for (int w = 0; w < window; w++) send_next(senders + i);
  for (uint64_t warm = now() + 1000000000ull; now() < warm;) turn(100);
  measuring = 1;
  double before = cpu_s();
  uint64_t begun = now(), until = begun + seconds * 1000000000ull;
  while (now() < until) turn(100);
  double time_s = (now() - begun) / 1e9, cpu = cpu_s() - before;
  printf("{\"answered\": %lu, \"per_s\": %.0f, \"broker_cpu_s\": %.2f, \"per_cpu_s\": %.0f, \"refused\": %lu}\n", answered,
         answered / time_s, cpu, cpu > 0 ? answered / cpu : 0, refused);
}

int main(int argc, char **argv) {
  for (int option; (option = getopt(argc, argv, "m:P:p:n:w:t:x:b:")) != -1;) switch (option) {
      case 'm': mode = optarg; break;
      case 'P': protocol = optarg; break;
      case 'p': port = atoi(optarg); break;
      case 'n': count = atoi(optarg); break;
      case 'w': window = atoi(optarg); break;
      case 't': seconds = atoi(optarg); break;
      case 'x': topic = optarg; break;
      case 'b': pids = optarg; break;
      default: return 2;
    }
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files), files.rlim_cur = files.rlim_max, setrlimit(RLIMIT_NOFILE, &files);
  loop = epoll_create1(0);
  senders = calloc(count, sizeof *senders);
  took = calloc(count + 1, sizeof *took);
  for (int i = 0; i < count; i++) senders[i].index = i;
  if (!strcmp(mode, "arrive")) arrive();
  else if (!strcmp(mode, "burst")) burst();
  else load();
  return 0;
}
