/* codec_check: the codec of headrace_frame.h behind a pipe, for tests. Words are hexadecimal ("-" is empty); a line in, a
 * line out:
 *
 *     E VERSION SN HELLO USER PASSWORD | E VERSION SN PUBLISH SEQ TOPIC PAYLOAD | E VERSION SN JOIN TOPIC CLUSTER | ...
 *         -> the bytes of the frame, "-" where there is no room
 *     D BYTES        what a server has sent, given to the reader byte by byte  -> what is in it, or "error CODE"
 *     F SEED BYTES   the bytes with SEED random changes, whatever comes out    -> "ok"
 */
#include "headrace_frame.h"

#include <stdio.h>
#include <stdlib.h>

#define ROOM (1 << 17)

static char line[4 * ROOM];
static uint8_t bytes[ROOM], frame_bytes[ROOM];

static size_t unhex(const char *word, uint8_t *out)
{
    size_t size = 0;
    if (word[0] == '-')
        return 0;
    while (word[0] != 0 && word[1] != 0) {
        char pair[3] = {word[0], word[1], 0};
        out[size++] = (uint8_t)strtoul(pair, NULL, 16);
        word += 2;
    }
    return size;
}

static void print_hex(const uint8_t *data, size_t size)
{
    size_t i;
    if (size == 0)
        printf("-");
    for (i = 0; i < size; i++)
        printf("%02x", data[i]);
}

static const char *text_of(const char *word)
{
    static char texts[4][ROOM / 2];
    static int next;
    char *text = texts[next++ & 3];
    text[unhex(word, (uint8_t *)text)] = 0;
    return text;
}

static size_t made(const hr_device *device, char **words, int count)
{
    const char *verb = words[3];
    if (!strcmp(verb, "HELLO") && count == 6)
        return hr_hello(frame_bytes, ROOM, device, text_of(words[4]), text_of(words[5]));
    if (!strcmp(verb, "PUBLISH") && count == 7) {
        size_t size = unhex(words[6], bytes);
        return hr_publish(
            frame_bytes, ROOM, device, (uint32_t)strtoul(words[4], NULL, 10), text_of(words[5]), bytes, size);
    }
    if (!strcmp(verb, "JOIN") && count == 6)
        return hr_join(frame_bytes, ROOM, device, text_of(words[4]), text_of(words[5]));
    if (!strcmp(verb, "LEAVE") && count == 6)
        return hr_leave(frame_bytes, ROOM, device, text_of(words[4]), text_of(words[5]));
    if (!strcmp(verb, "PULL") && count == 8)
        return hr_pull(frame_bytes, ROOM, device, text_of(words[4]), text_of(words[5]), (uint16_t)atoi(words[6]),
            (uint16_t)atoi(words[7]));
    if (!strcmp(verb, "ACK") && count == 7) {
        size_t size = unhex(words[6], bytes);
        return hr_ack(frame_bytes, ROOM, device, text_of(words[4]), text_of(words[5]), bytes,
            (uint16_t)(size / HR_ID_SIZE));
    }
    return hr_ping(frame_bytes, ROOM, device);
}

static void encode(char **words, int count)
{
    hr_device device;
    size_t size = unhex(words[2], bytes);
    if (hr_device_init(&device, (uint8_t)atoi(words[1]), bytes, size) != HR_OK) {
        printf("-\n");
        return;
    }
    print_hex(frame_bytes, made(&device, words, count));
    printf("\n");
}

static int print_pulled(const hr_frame *frame)
{
    hr_messages messages;
    hr_message message;
    int found;
    if (hr_take_pulled(frame, &messages))
        return HR_BAD_BODY;
    while ((found = hr_next_message(&messages, &message)) == HR_FOUND) {
        printf(" ");
        print_hex(message.id, HR_ID_SIZE);
        printf(" %u ", message.redelivered);
        print_hex(message.sn.data, message.sn.size);
        printf(" %llu ", (unsigned long long)message.time_ms);
        print_hex(message.payload.data, message.payload.size);
    }
    return found;
}

static int print_frame(const hr_frame *frame)
{
    hr_published answer;
    hr_notified news;
    hr_text reason;
    uint8_t code;
    printf("%04x ", frame->opcode);
    print_hex(frame->sn, frame->sn_size);
    switch (frame->opcode) {
    case HR_PUBLISH | HR_RESPONSE:
        if (hr_take_published(frame, &answer))
            return HR_BAD_BODY;
        printf(" %lu %u ", (unsigned long)answer.seq, answer.code);
        print_hex(answer.id, HR_ID_SIZE);
        return HR_OK;
    case HR_NOTIFY:
        if (hr_take_notified(frame, &news))
            return HR_BAD_BODY;
        printf(" ");
        print_hex(news.topic.data, news.topic.size);
        printf(" ");
        print_hex(news.cluster.data, news.cluster.size);
        printf(" %lu", (unsigned long)news.available);
        return HR_OK;
    case HR_PULL | HR_RESPONSE:
        return print_pulled(frame);
    case HR_ERROR:
        if (hr_take_error(frame, &code, &reason))
            return HR_BAD_BODY;
        printf(" %u ", code);
        print_hex(reason.data, reason.size);
        return HR_OK;
    case HR_PING | HR_RESPONSE:
        return frame->body_size == 0 ? HR_OK : HR_BAD_BODY;
    default:
        if (hr_code(frame, &code))
            return HR_BAD_BODY;
        printf(" %u", code);
        return HR_OK;
    }
}

/* A buffer of its own, so that a sanitizer sees whatever is read beyond it. */
static void decode(const uint8_t *data, size_t size)
{
    size_t largest = size < 9 ? 9 : size + 1;
    uint8_t *buffer = malloc(largest);
    hr_reader reader;
    hr_frame frame;
    size_t at = 0;
    int found = HR_OK;
    hr_reader_init(&reader, buffer, largest);
    while (buffer != NULL && found >= 0) {
        size_t room;
        uint8_t *space;
        while ((found = hr_next(&reader, &frame)) == HR_FOUND)
            if ((found = print_frame(&frame)) < 0)
                break;
        space = hr_reader_space(&reader, &room);
        if (found < 0 || at == size)
            break;
        *space = data[at++];
        hr_reader_added(&reader, 1);
    }
    if (found < 0)
        printf("error %d", found);
    else if (reader.used > 0)
        printf("more");
    printf("\n");
    free(buffer);
}

static void fuzz(unsigned seed, uint8_t *data, size_t size)
{
    unsigned i;
    srand(seed);
    for (i = 0; i < 1 + seed % 4 && size > 0; i++)
        data[(size_t)rand() % size] = (uint8_t)rand();
    if (seed % 2 && size > 9) /* with a good checksum what is behind it is reached */
        data[size - 1] = hr_checksum(data[0], data, size - 1);
    decode(data, size);
}

int main(void)
{
    while (fgets(line, sizeof line, stdin) != NULL) {
        char *words[8], *word = strtok(line, " \n");
        int count = 0;
        while (word != NULL && count < 8) {
            words[count++] = word;
            word = strtok(NULL, " \n");
        }
        if (count > 3 && words[0][0] == 'E')
            encode(words, count);
        else if (count == 2 && words[0][0] == 'D')
            decode(bytes, unhex(words[1], bytes));
        else if (count == 3 && words[0][0] == 'F')
            fuzz((unsigned)atoi(words[1]), bytes, unhex(words[2], bytes));
    }
    return 0;
}
