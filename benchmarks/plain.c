// plain: the server that anybody would write first. It reads a message of 24 bytes, appends it to a file, has it synced,
// and answers with one byte. One thread, epoll; nothing around it.
// build: cc -O2 -o plain plain.c      run: plain PORT FILE
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BODY = 24, EVENTS = 1024 };
typedef struct { int fd; size_t length; uint8_t in[BODY]; } client;

static int loop, file;

static void welcome(int listener) {
  int one = 1, fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
  if (fd < 0) return;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  client *c = calloc(1, sizeof *c);
  c->fd = fd;
  struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
  epoll_ctl(loop, EPOLL_CTL_ADD, fd, &e);
}
static void serve(client *c) {
  ssize_t got = read(c->fd, c->in + c->length, BODY - c->length);
  if (got <= 0) {
    close(c->fd);
    free(c);
    return;
  }
  c->length += got;
  if (c->length < BODY) return;
  c->length = 0;
  if (write(file, c->in, BODY) != BODY || fdatasync(file)) perror("write"), exit(1);
  if (write(c->fd, "k", 1) != 1) perror("answer");
}
int main(int argc, char **argv) {
  if (argc != 3) return 2;
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files), files.rlim_cur = files.rlim_max, setrlimit(RLIMIT_NOFILE, &files);
  int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  if (bind(listener, (void *)&at, sizeof at) || listen(listener, 8192)) return perror("listen"), 1;
  file = open(argv[2], O_CREAT | O_WRONLY | O_APPEND, 0600);
  if (file < 0) return perror(argv[2]), 1;
  loop = epoll_create1(0);
  struct epoll_event events[EVENTS], e = {.events = EPOLLIN, .data.ptr = NULL};
  epoll_ctl(loop, EPOLL_CTL_ADD, listener, &e);
  fprintf(stderr, "ready\n");
  for (;;) {
    int ready = epoll_wait(loop, events, EVENTS, -1);
    for (int i = 0; i < ready; i++)
      if (events[i].data.ptr) serve(events[i].data.ptr);
      else welcome(listener);
  }
}
