/* headrace_frame.h: frames of headrace for devices, in C99 (docs/reference/frames.md of the project).
 *
 * One header, no memory of its own, no global state: every buffer is the caller's. Three parts:
 *
 *   hr_hello ... hr_ping      make the bytes of a frame                                        no I/O
 *   hr_reader, hr_next        take a stream of bytes apart, in pieces of any size              no I/O
 *   hr_producer               keeps PUBLISH frames until they are answered, in order, and      no I/O
 *                             gives them once more, under the same number, after a new connection
 *   hr_connect ... hr_deliver a blocking socket for all that, where HEADRACE_FRAME_POSIX is defined before the header
 *                             is included (and _POSIX_C_SOURCE as 200809L before any system header)
 *
 * Texts are UTF-8 and end with a zero; they are not checked, the broker does that. A function that makes bytes returns
 * their number, 0 where there is no room or something is too long for its field.
 *
 * A message is stored once although it is sent again, if SN, number, topic and payload are the same and not more than five
 * minutes have passed. A device that is reset begins at another number (hr_producer_init).
 *
 * SPDX-License-Identifier: as the project's LICENSE
 */
#ifndef HEADRACE_FRAME_H
#define HEADRACE_FRAME_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HR_VERSION_1 1 /* SN of one byte, checksum XOR */
#define HR_VERSION_2 2 /* SN of 1 to 255 bytes, checksum CRC-8 */
#define HR_SN_MAX 255
#define HR_ID_SIZE 16

enum {
    HR_HELLO = 1,
    HR_PUBLISH = 2,
    HR_JOIN = 3,
    HR_LEAVE = 4,
    HR_NOTIFY = 5,
    HR_PULL = 6,
    HR_ACK = 7,
    HR_PING = 8,
    HR_RESPONSE = 0x8000,
    HR_ERROR = 0x80FF
};

/* What functions return that may fail; below 0 the connection is of no use any more. */
enum {
    HR_OK = 0,
    HR_FOUND = 1,
    HR_BAD_VERSION = -1,
    HR_BAD_LENGTH = -2, /* a frame that does not fit into the reader's buffer, too */
    HR_BAD_CHECKSUM = -3,
    HR_BAD_BODY = -4,
    HR_FULL = -5,      /* the producer has no room: wait for answers */
    HR_CLOSED = -6,    /* the connection has ended, or nothing came in time */
    HR_REFUSED = -7,   /* HELLO was answered with a code of 0x80 or above, or the broker has sent ERROR */
    HR_LATER = -8      /* the broker's disk is full: connect again after a while, the message is kept */
};

#define HR_CODE_QUOTA_EXCEEDED 0x97

/* Who speaks. Of version 1 the SN is one byte. */
typedef struct {
    uint8_t version;
    uint8_t sn_size;
    uint8_t sn[HR_SN_MAX];
} hr_device;

/* A frame in the buffer of a reader: valid until the next hr_next. */
typedef struct {
    uint8_t version;
    uint16_t opcode;
    const uint8_t *sn;
    size_t sn_size;
    const uint8_t *body;
    size_t body_size;
} hr_frame;

typedef struct {
    const uint8_t *data;
    size_t size;
} hr_text;

/* The answer to a PUBLISH. */
typedef struct {
    uint32_t seq;
    uint8_t code; /* 0: it is durable and has this id */
    uint8_t id[HR_ID_SIZE];
} hr_published;

typedef struct {
    hr_text topic, cluster;
    uint32_t available;
} hr_notified;

/* The messages of an answer to PULL: take them with hr_next_message. */
typedef struct {
    const uint8_t *at;
    size_t left;
    uint16_t count; /* not taken yet */
} hr_messages;

typedef struct {
    const uint8_t *id; /* HR_ID_SIZE bytes */
    uint8_t redelivered;
    hr_text sn;
    uint64_t time_ms;
    hr_text payload;
} hr_message;

/* Checksums */

static inline uint8_t hr_xor(const uint8_t *data, size_t size)
{
    uint8_t found = 0;
    size_t i;
    for (i = 0; i < size; i++)
        found = (uint8_t)(found ^ data[i]);
    return found;
}

/* CRC-8: polynomial 0x07, initial value 0, not reflected. */
static inline uint8_t hr_crc8(const uint8_t *data, size_t size)
{
    uint8_t found = 0;
    size_t i;
    int bit;
    for (i = 0; i < size; i++) {
        found = (uint8_t)(found ^ data[i]);
        for (bit = 0; bit < 8; bit++)
            found = (uint8_t)((found & 0x80) ? (found << 1) ^ 0x07 : found << 1);
    }
    return found;
}

static inline uint8_t hr_checksum(uint8_t version, const uint8_t *data, size_t size)
{
    return version == HR_VERSION_1 ? hr_xor(data, size) : hr_crc8(data, size);
}

/* Devices */

/* HR_OK, or HR_BAD_LENGTH where the SN is not of this version. */
static inline int hr_device_init(hr_device *device, uint8_t version, const void *sn, size_t sn_size)
{
    if (version != HR_VERSION_1 && version != HR_VERSION_2)
        return HR_BAD_VERSION;
    if (sn_size == 0 || sn_size > HR_SN_MAX || (version == HR_VERSION_1 && sn_size != 1))
        return HR_BAD_LENGTH;
    device->version = version;
    device->sn_size = (uint8_t)sn_size;
    memcpy(device->sn, sn, sn_size);
    return HR_OK;
}

/* Bytes of a frame. `hr_writer` counts what does not fit, and hr_end says so. */

typedef struct {
    uint8_t *out;
    size_t room, used;
    int too_long;
} hr_writer;

static inline void hr_put(hr_writer *to, const void *data, size_t size)
{
    if (size > to->room - to->used) {
        to->too_long = 1;
        return;
    }
    if (size > 0)
        memcpy(to->out + to->used, data, size);
    to->used += size;
}

static inline void hr_put_number(hr_writer *to, uint32_t value, size_t size)
{
    uint8_t bytes[4];
    size_t i;
    for (i = 0; i < size; i++)
        bytes[i] = (uint8_t)(value >> (8 * (size - 1 - i)));
    hr_put(to, bytes, size);
}

static inline void hr_put_text(hr_writer *to, const char *text)
{
    size_t size = strlen(text);
    if (size > 0xFFFF) {
        to->too_long = 1;
        return;
    }
    hr_put_number(to, (uint32_t)size, 2);
    hr_put(to, text, size);
}

static inline hr_writer hr_begin(uint8_t *out, size_t room, const hr_device *device, uint16_t opcode)
{
    hr_writer to;
    to.out = out;
    to.room = room;
    to.used = 0;
    to.too_long = 0;
    hr_put_number(&to, device->version, 1);
    hr_put_number(&to, 0, 4);
    hr_put_number(&to, opcode, 2);
    if (device->version == HR_VERSION_2)
        hr_put_number(&to, device->sn_size, 1);
    hr_put(&to, device->sn, device->sn_size);
    return to;
}

static inline size_t hr_end(hr_writer *to)
{
    hr_writer length;
    uint8_t checksum;
    if (to->too_long || to->used >= to->room || to->used + 1 > 0xFFFFFFFFu)
        return 0;
    length = *to;
    length.used = 1;
    hr_put_number(&length, (uint32_t)(to->used + 1), 4);
    checksum = hr_checksum(to->out[0], to->out, to->used);
    hr_put(to, &checksum, 1);
    return to->used;
}

static inline size_t hr_hello(
    uint8_t *out, size_t room, const hr_device *device, const char *user, const char *password)
{
    hr_writer to = hr_begin(out, room, device, HR_HELLO);
    hr_put_text(&to, user);
    hr_put_text(&to, password);
    return hr_end(&to);
}

static inline size_t hr_publish(
    uint8_t *out, size_t room, const hr_device *device, uint32_t seq, const char *topic, const void *payload, size_t size)
{
    hr_writer to = hr_begin(out, room, device, HR_PUBLISH);
    hr_put_number(&to, seq, 4);
    hr_put_text(&to, topic);
    hr_put(&to, payload, size);
    return hr_end(&to);
}

static inline size_t hr_of_cluster(
    uint8_t *out, size_t room, const hr_device *device, uint16_t opcode, const char *topic, const char *cluster)
{
    hr_writer to = hr_begin(out, room, device, opcode);
    hr_put_text(&to, topic);
    hr_put_text(&to, cluster);
    return hr_end(&to);
}

static inline size_t hr_join(
    uint8_t *out, size_t room, const hr_device *device, const char *topic, const char *cluster)
{
    return hr_of_cluster(out, room, device, HR_JOIN, topic, cluster);
}

static inline size_t hr_leave(
    uint8_t *out, size_t room, const hr_device *device, const char *topic, const char *cluster)
{
    return hr_of_cluster(out, room, device, HR_LEAVE, topic, cluster);
}

static inline size_t hr_pull(
    uint8_t *out, size_t room, const hr_device *device, const char *topic, const char *cluster, uint16_t max,
    uint16_t wait_ms)
{
    hr_writer to = hr_begin(out, room, device, HR_PULL);
    hr_put_text(&to, topic);
    hr_put_text(&to, cluster);
    hr_put_number(&to, max, 2);
    hr_put_number(&to, wait_ms, 2);
    return hr_end(&to);
}

/* `ids`: `count` times HR_ID_SIZE bytes. */
static inline size_t hr_ack(
    uint8_t *out, size_t room, const hr_device *device, const char *topic, const char *cluster, const uint8_t *ids,
    uint16_t count)
{
    hr_writer to = hr_begin(out, room, device, HR_ACK);
    hr_put_text(&to, topic);
    hr_put_text(&to, cluster);
    hr_put_number(&to, count, 2);
    hr_put(&to, ids, (size_t)count * HR_ID_SIZE);
    return hr_end(&to);
}

static inline size_t hr_ping(uint8_t *out, size_t room, const hr_device *device)
{
    hr_writer to = hr_begin(out, room, device, HR_PING);
    return hr_end(&to);
}

/* What comes */

/* A stream that is taken apart in `buffer`, which must hold the largest frame that may come. */
typedef struct {
    uint8_t *buffer;
    size_t room, used;
    size_t taken; /* of the frame that was given last */
} hr_reader;

static inline void hr_reader_init(hr_reader *reader, uint8_t *buffer, size_t room)
{
    reader->buffer = buffer;
    reader->room = room;
    reader->used = 0;
    reader->taken = 0;
}

static inline void hr_drop_taken(hr_reader *reader)
{
    if (reader->taken > 0) {
        reader->used -= reader->taken;
        memmove(reader->buffer, reader->buffer + reader->taken, reader->used);
        reader->taken = 0;
    }
}

/* Where the next bytes go, and how many there is room for; tell hr_reader_added how many came. The frame that was given
 * last is gone. */
static inline uint8_t *hr_reader_space(hr_reader *reader, size_t *room)
{
    hr_drop_taken(reader);
    *room = reader->room - reader->used;
    return reader->buffer + reader->used;
}

static inline void hr_reader_added(hr_reader *reader, size_t size)
{
    reader->used += size;
}

static inline uint32_t hr_number(const uint8_t *at, size_t size)
{
    uint32_t found = 0;
    size_t i;
    for (i = 0; i < size; i++)
        found = found << 8 | at[i];
    return found;
}

static inline int hr_take_apart(const uint8_t *at, size_t length, hr_frame *frame)
{
    size_t sn_at = at[0] == HR_VERSION_1 ? 7 : 8;
    size_t sn_size = at[0] == HR_VERSION_1 ? 1 : at[7];
    if (hr_checksum(at[0], at, length - 1) != at[length - 1])
        return HR_BAD_CHECKSUM;
    if (sn_size == 0 || sn_at + sn_size > length - 1)
        return HR_BAD_BODY;
    frame->version = at[0];
    frame->opcode = (uint16_t)hr_number(at + 5, 2);
    frame->sn = at + sn_at;
    frame->sn_size = sn_size;
    frame->body = at + sn_at + sn_size;
    frame->body_size = length - 1 - sn_at - sn_size;
    return HR_FOUND;
}

/* HR_FOUND: `frame` is the next one. HR_OK: more bytes are needed. Below 0: the stream is no frames, close it. */
static inline int hr_next(hr_reader *reader, hr_frame *frame)
{
    uint32_t length;
    int found;
    hr_drop_taken(reader);
    if (reader->used > 0 && reader->buffer[0] != HR_VERSION_1 && reader->buffer[0] != HR_VERSION_2)
        return HR_BAD_VERSION;
    if (reader->used < 5)
        return HR_OK;
    length = hr_number(reader->buffer + 1, 4);
    if (length < 9 || length > reader->room)
        return HR_BAD_LENGTH;
    if (reader->used < length)
        return HR_OK;
    found = hr_take_apart(reader->buffer, length, frame);
    if (found == HR_FOUND)
        reader->taken = length;
    return found;
}

static inline int hr_take_text(const uint8_t **at, size_t *left, size_t size_of_length, hr_text *text)
{
    size_t size;
    if (*left < size_of_length)
        return HR_BAD_BODY;
    size = hr_number(*at, size_of_length);
    if (size > *left - size_of_length)
        return HR_BAD_BODY;
    text->data = *at + size_of_length;
    text->size = size;
    *at += size_of_length + size;
    *left -= size_of_length + size;
    return HR_OK;
}

/* The code that HELLO, JOIN, LEAVE or ACK is answered with. */
static inline int hr_code(const hr_frame *frame, uint8_t *code)
{
    if (frame->body_size != 1)
        return HR_BAD_BODY;
    *code = frame->body[0];
    return HR_OK;
}

static inline int hr_take_published(const hr_frame *frame, hr_published *answer)
{
    if (frame->body_size != 5 + HR_ID_SIZE)
        return HR_BAD_BODY;
    answer->seq = hr_number(frame->body, 4);
    answer->code = frame->body[4];
    memcpy(answer->id, frame->body + 5, HR_ID_SIZE);
    return HR_OK;
}

static inline int hr_take_notified(const hr_frame *frame, hr_notified *news)
{
    const uint8_t *at = frame->body;
    size_t left = frame->body_size;
    if (hr_take_text(&at, &left, 2, &news->topic) || hr_take_text(&at, &left, 2, &news->cluster) || left != 4)
        return HR_BAD_BODY;
    news->available = hr_number(at, 4);
    return HR_OK;
}

static inline int hr_take_error(const hr_frame *frame, uint8_t *code, hr_text *reason)
{
    const uint8_t *at = frame->body;
    size_t left = frame->body_size;
    if (left < 1)
        return HR_BAD_BODY;
    *code = *at++;
    left--;
    return hr_take_text(&at, &left, 2, reason) || left != 0 ? HR_BAD_BODY : HR_OK;
}

static inline int hr_take_pulled(const hr_frame *frame, hr_messages *messages)
{
    if (frame->body_size < 2)
        return HR_BAD_BODY;
    messages->count = (uint16_t)hr_number(frame->body, 2);
    messages->at = frame->body + 2;
    messages->left = frame->body_size - 2;
    return HR_OK;
}

/* HR_FOUND: `message` is the next one. HR_OK: there was none left. */
static inline int hr_next_message(hr_messages *messages, hr_message *message)
{
    if (messages->count == 0)
        return messages->left == 0 ? HR_OK : HR_BAD_BODY;
    if (messages->left < HR_ID_SIZE + 1)
        return HR_BAD_BODY;
    message->id = messages->at;
    message->redelivered = messages->at[HR_ID_SIZE];
    messages->at += HR_ID_SIZE + 1;
    messages->left -= HR_ID_SIZE + 1;
    if (hr_take_text(&messages->at, &messages->left, 2, &message->sn) || messages->left < 8)
        return HR_BAD_BODY;
    message->time_ms = (uint64_t)hr_number(messages->at, 4) << 32 | hr_number(messages->at + 4, 4);
    messages->at += 8;
    messages->left -= 8;
    if (hr_take_text(&messages->at, &messages->left, 4, &message->payload))
        return HR_BAD_BODY;
    messages->count--;
    return HR_FOUND;
}

/* A producer: frames wait in `storage`, in the order in which they were put in, until the broker has answered. */

typedef struct {
    const hr_device *device;
    uint8_t *storage;
    size_t room, used;
    size_t sent;          /* of `used`, on this connection */
    uint32_t seq;         /* of the next message */
    uint32_t acknowledged; /* messages that are durable */
    uint32_t refused;     /* messages that the broker does not take, and that are gone */
    uint8_t refused_code; /* of the last one */
    uint8_t error_code;   /* of the last ERROR */
} hr_producer;

/* `seq`: where the numbers begin. Another message of the same topic and payload under a number that was used within five
 * minutes is taken for the first, and not stored: a device that begins at 0 at each reset loses an "open" that is like the
 * one before the reset. So begin at a number that each reset makes another: a random one, or a counter of resets in flash
 * times 65 536. */
static inline void hr_producer_init(
    hr_producer *producer, const hr_device *device, uint8_t *storage, size_t room, uint32_t seq)
{
    memset(producer, 0, sizeof *producer);
    producer->device = device;
    producer->storage = storage;
    producer->room = room;
    producer->seq = seq;
}

/* Take a message. HR_FULL: wait for answers; that is for ever where the storage is smaller than the frame. */
static inline int hr_produce(hr_producer *producer, const char *topic, const void *payload, size_t size)
{
    size_t made = hr_publish(
        producer->storage + producer->used, producer->room - producer->used, producer->device, producer->seq, topic,
        payload, size);
    if (made == 0)
        return HR_FULL;
    producer->used += made;
    producer->seq++;
    return HR_OK;
}

/* The bytes that are to be sent now; tell hr_producer_sent how many were. */
static inline const uint8_t *hr_producer_pending(const hr_producer *producer, size_t *size)
{
    *size = producer->used - producer->sent;
    return producer->storage + producer->sent;
}

static inline void hr_producer_sent(hr_producer *producer, size_t size)
{
    producer->sent += size;
}

/* There is a new connection: what was not answered is sent again, under the same numbers. */
static inline void hr_producer_reconnected(hr_producer *producer)
{
    producer->sent = 0;
}

/* A frame has come. HR_FOUND: it was the answer to the oldest message, which is gone; `answer` (may be NULL) says what it
 * was. HR_OK: it was something else. HR_LATER, HR_REFUSED, HR_BAD_BODY: close the connection. */
static inline int hr_producer_take(hr_producer *producer, const hr_frame *frame, hr_published *answer)
{
    hr_published found;
    size_t oldest, at;
    if (frame->opcode == HR_ERROR) {
        hr_text reason;
        return hr_take_error(frame, &producer->error_code, &reason) ? HR_BAD_BODY : HR_REFUSED;
    }
    if (frame->opcode != (HR_PUBLISH | HR_RESPONSE))
        return HR_OK;
    if (hr_take_published(frame, &found) || producer->sent == 0)
        return HR_BAD_BODY;
    oldest = hr_number(producer->storage + 1, 4);
    at = 7 + (producer->device->version == HR_VERSION_2 ? 1u : 0u) + producer->device->sn_size;
    if (oldest > producer->sent || hr_number(producer->storage + at, 4) != found.seq)
        return HR_BAD_BODY;
    if (found.code == HR_CODE_QUOTA_EXCEEDED)
        return HR_LATER;
    if (found.code == 0) {
        producer->acknowledged++;
    } else {
        producer->refused++;
        producer->refused_code = found.code;
    }
    producer->used -= oldest;
    producer->sent -= oldest;
    memmove(producer->storage, producer->storage + oldest, producer->used);
    if (answer != NULL)
        *answer = found;
    return HR_FOUND;
}

#ifdef HEADRACE_FRAME_POSIX
/* A blocking connection. Times are in milliseconds. */

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

/* A socket, or HR_CLOSED. Nothing waits for longer than `timeout_ms`. */
static inline int hr_connect(const char *host, const char *port, int timeout_ms)
{
    struct timeval limit;
    struct addrinfo hints, *found, *one;
    int connection = HR_CLOSED;
    limit.tv_sec = timeout_ms / 1000;
    limit.tv_usec = (timeout_ms % 1000) * 1000;
    memset(&hints, 0, sizeof hints);
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(host, port, &hints, &found) != 0)
        return HR_CLOSED;
    for (one = found; one != NULL && connection < 0; one = one->ai_next) {
        int tried = socket(one->ai_family, one->ai_socktype, one->ai_protocol);
        if (tried < 0)
            continue;
        if (setsockopt(tried, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0
            && connect(tried, one->ai_addr, one->ai_addrlen) == 0)
            connection = tried;
        else
            close(tried);
    }
    freeaddrinfo(found);
    return connection;
}

static inline int hr_send_all(int connection, const uint8_t *data, size_t size)
{
    while (size > 0) {
        ssize_t sent = send(connection, data, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return HR_CLOSED;
        data += sent;
        size -= (size_t)sent;
    }
    return HR_OK;
}

/* More bytes for the reader. HR_OK, or HR_CLOSED at the end and where nothing comes in time. */
static inline int hr_receive(int connection, hr_reader *reader, int timeout_ms)
{
    size_t room;
    uint8_t *space = hr_reader_space(reader, &room);
    for (;;) {
        struct pollfd waiting;
        ssize_t got;
        waiting.fd = connection;
        waiting.events = POLLIN;
        waiting.revents = 0;
        errno = 0;
        if (poll(&waiting, 1, timeout_ms) <= 0) {
            if (waiting.revents == 0 && errno == EINTR)
                continue;
            return HR_CLOSED;
        }
        got = recv(connection, space, room, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return HR_CLOSED;
        hr_reader_added(reader, (size_t)got);
        return HR_OK;
    }
}

/* The next frame: HR_FOUND, or an error. */
static inline int hr_await(int connection, hr_reader *reader, hr_frame *frame, int timeout_ms)
{
    int found;
    while ((found = hr_next(reader, frame)) == HR_OK)
        if ((found = hr_receive(connection, reader, timeout_ms)) != HR_OK)
            return found;
    return found;
}

/* Say who it is and wait for the answer: HR_OK or an error; `code` is what the broker said. The HELLO is made in the
 * reader's buffer, which must be empty. */
static inline int hr_sign_in(
    int connection, hr_reader *reader, const hr_device *device, const char *user, const char *password, uint8_t *code,
    int timeout_ms)
{
    hr_frame frame;
    size_t size = hr_hello(reader->buffer, reader->room, device, user, password);
    int found;
    *code = 0;
    if (size == 0)
        return HR_BAD_LENGTH;
    if (hr_send_all(connection, reader->buffer, size) != HR_OK)
        return HR_CLOSED;
    if ((found = hr_await(connection, reader, &frame, timeout_ms)) != HR_FOUND)
        return found;
    if (frame.opcode == HR_ERROR) {
        hr_text reason;
        return hr_take_error(&frame, code, &reason) ? HR_BAD_BODY : HR_REFUSED;
    }
    if (frame.opcode != (HR_HELLO | HR_RESPONSE) || hr_code(&frame, code))
        return HR_BAD_BODY;
    return *code < 0x80 ? HR_OK : HR_REFUSED;
}

/* Send what waits, and take answers until none is owed: HR_OK or an error. */
static inline int hr_exchange(int connection, hr_producer *producer, hr_reader *reader, int timeout_ms)
{
    while (producer->used > 0) {
        size_t size;
        const uint8_t *data = hr_producer_pending(producer, &size);
        hr_frame frame;
        int found;
        if (size > 0) {
            hr_producer_sent(producer, size); /* also where it fails: the next connection sends all of it again */
            if (hr_send_all(connection, data, size) != HR_OK)
                return HR_CLOSED;
        }
        if ((found = hr_await(connection, reader, &frame, timeout_ms)) != HR_FOUND)
            return found;
        if ((found = hr_producer_take(producer, &frame, NULL)) < 0)
            return found;
    }
    return HR_OK;
}

static inline void hr_pause(int ms)
{
    struct timespec span;
    span.tv_sec = ms / 1000;
    span.tv_nsec = (long)(ms % 1000) * 1000000L;
    nanosleep(&span, NULL);
}

/* Where a producer sends to. `connection` is kept from one hr_deliver to the next; it begins as -1. */
typedef struct {
    const char *host, *port;
    const char *user, *password; /* user NULL: no HELLO */
    int timeout_ms;              /* for an answer */
    int pause_ms, pause_max_ms;  /* before the first new connection, and at most: it doubles */
    int tries_max;               /* connections in a row without an answer, 0: for ever */
    int connection;
    uint8_t code; /* what the broker said when it refused */
} hr_broker;

static inline void hr_hang_up(hr_broker *broker)
{
    if (broker->connection >= 0)
        close(broker->connection);
    broker->connection = -1;
}

static inline int hr_begin_connection(hr_broker *broker, hr_producer *producer, hr_reader *reader)
{
    hr_reader_init(reader, reader->buffer, reader->room);
    hr_producer_reconnected(producer);
    broker->connection = hr_connect(broker->host, broker->port, broker->timeout_ms);
    if (broker->connection < 0)
        return HR_CLOSED;
    if (broker->user == NULL)
        return HR_OK;
    return hr_sign_in(
        broker->connection, reader, producer->device, broker->user, broker->password, &broker->code,
        broker->timeout_ms);
}

/* Whether a broker that has said this may do what is asked for later: it is full or busy, stops, has waited too long, has
 * failed, or wants fewer connections or messages a second. */
static inline int hr_passes(uint8_t code)
{
    switch (code) {
    case 0x80: /* Unspecified error */
    case 0x83: /* Implementation specific error */
    case 0x88: /* Server unavailable */
    case 0x89: /* Server busy */
    case 0x8B: /* Server shutting down */
    case 0x8D: /* Keep Alive timeout */
    case 0x93: /* Receive Maximum exceeded */
    case 0x96: /* Message rate too high */
    case HR_CODE_QUOTA_EXCEEDED:
    case 0x98: /* Administrative action */
    case 0x9C: /* Use another server */
    case 0x9D: /* Server moved */
    case 0x9F: /* Connection rate exceeded */
    case 0xA0: /* Maximum connect time */
        return 1;
    default:
        return 0;
    }
}

/* Send what the producer has until all of it is answered, over new connections where that must be. HR_OK; HR_REFUSED
 * where the broker does not let the device in; HR_CLOSED after `tries_max`. What is not answered stays. */
static inline int hr_deliver(hr_broker *broker, hr_producer *producer, hr_reader *reader)
{
    int pause_ms = broker->pause_ms, tries = 0, found = HR_OK;
    while (producer->used > 0) {
        uint32_t before = producer->acknowledged + producer->refused;
        found = broker->connection < 0 ? hr_begin_connection(broker, producer, reader) : HR_OK;
        if (found == HR_OK)
            found = hr_exchange(broker->connection, producer, reader, broker->timeout_ms);
        if (found == HR_OK)
            return HR_OK;
        hr_hang_up(broker);
        if (found == HR_REFUSED && producer->error_code != 0) {
            broker->code = producer->error_code;
            producer->error_code = 0;
        }
        if (found == HR_REFUSED && !hr_passes(broker->code))
            return HR_REFUSED;
        if (producer->acknowledged + producer->refused != before) {
            tries = 0;
            pause_ms = broker->pause_ms;
        } else if (broker->tries_max > 0 && ++tries >= broker->tries_max) {
            return found;
        }
        hr_pause(pause_ms);
        pause_ms = pause_ms > broker->pause_max_ms / 2 ? broker->pause_max_ms : 2 * pause_ms;
    }
    return HR_OK;
}
#endif /* HEADRACE_FRAME_POSIX */
#endif /* HEADRACE_FRAME_H */
