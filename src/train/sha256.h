/* SHA-256 (FIPS 180-4), so that files can be checked with sha256sum. */
#ifndef MX8_TRAIN_SHA256_H
#define MX8_TRAIN_SHA256_H

#include <stddef.h>
#include <stdint.h>
#include "mx8/status.h"

struct mx8_sha256 {
    uint32_t state[8];
    uint64_t size;
    uint8_t block[64];
    int32_t by_instruction; /* the processor has some for it; asking takes microseconds in a virtual machine */
};
void mx8i_begin_sha256(struct mx8_sha256 *h);
void mx8i_add_sha256(struct mx8_sha256 *h, const void *data, size_t size);
void mx8i_end_sha256(struct mx8_sha256 *h, char hex[65]);
/* The portable way that processors without instructions of their own take: `count` blocks of 64 bytes. */
void mx8i_mix_sha256(uint32_t state[8], const uint8_t *blocks, size_t count);
enum mx8_status mx8i_hash_file(const char *path, char hex[65]);

#endif
