/* produce: a device that publishes so many messages of 24 bytes and ends when the broker has every one on its disk.
 *
 *     cc -std=c99 -Wall -Wextra -pedantic -O2 -o produce produce.c
 *     ./produce HOST PORT VERSION SN TOPIC COUNT [FIRST_NUMBER [USER PASSWORD]]
 *
 * It connects again whenever it must, and sends what was not answered once more: kill the broker while it runs.
 */
#define _POSIX_C_SOURCE 200809L
#define HEADRACE_FRAME_POSIX
#include "headrace_frame.h"

#include <stdio.h>
#include <stdlib.h>

#define PAYLOAD 24

static uint8_t storage[4096]; /* about fifty messages that are not answered */
static uint8_t incoming[1024];

static int device_of(const char *version, const char *sn, hr_device *device)
{
    uint8_t number = (uint8_t)atoi(sn);
    if (atoi(version) == HR_VERSION_1)
        return hr_device_init(device, HR_VERSION_1, &number, 1);
    return hr_device_init(device, (uint8_t)atoi(version), sn, strlen(sn));
}

int main(int count, char **words)
{
    hr_device device;
    hr_producer producer;
    hr_reader reader;
    hr_broker broker;
    unsigned long number, most;
    int found = HR_OK;

    if (count < 7 || device_of(words[3], words[4], &device) != HR_OK) {
        fprintf(stderr, "usage: %s HOST PORT VERSION SN TOPIC COUNT [FIRST_NUMBER [USER PASSWORD]]\n", words[0]);
        return 2;
    }
    most = strtoul(words[6], NULL, 10);
    hr_producer_init(&producer, &device, storage, sizeof storage, count > 7 ? (uint32_t)strtoul(words[7], NULL, 10) : 0);
    hr_reader_init(&reader, incoming, sizeof incoming);
    memset(&broker, 0, sizeof broker);
    broker.host = words[1];
    broker.port = words[2];
    broker.user = count > 9 ? words[8] : NULL;
    broker.password = count > 9 ? words[9] : NULL;
    broker.timeout_ms = 10000;
    broker.pause_ms = 50;
    broker.pause_max_ms = 1000;
    broker.tries_max = 300;
    broker.connection = -1;

    for (number = 0; number < most && found == HR_OK; number++) {
        char payload[PAYLOAD + 1];
        snprintf(payload, sizeof payload, "%024lu", number);
        while (found == HR_OK && hr_produce(&producer, words[5], payload, PAYLOAD) == HR_FULL)
            found = producer.used > 0 ? hr_deliver(&broker, &producer, &reader) : HR_BAD_LENGTH;
    }
    if (found == HR_OK)
        found = hr_deliver(&broker, &producer, &reader);
    hr_hang_up(&broker);
    printf("acknowledged %lu refused %lu code %u\n", (unsigned long)producer.acknowledged,
        (unsigned long)producer.refused, (unsigned)(broker.code ? broker.code : producer.refused_code));
    return found == HR_OK && producer.refused == 0 ? 0 : 1;
}
