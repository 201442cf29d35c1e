/* Headers of token shards: by themselves, and as training data; the manifest.json beside them. The first byte picks
 * the shard's name and the rest; with bit 3, what stands before the next 0 byte is the manifest. */
#include "fuzz.h"
#include "train/source.h"

enum { SEQ = 5, VOCABULARY = 300 };

static void read_alone(const char *path) {
    struct mx8_shard shard;
    int64_t sum = 0;
    if (mx8i_open_shard(path, &shard) != MX8_OK) return;
    for (int64_t i = 0; i < shard.count; i++) sum += mx8i_load_token(&shard, i);
    ALWAYS(sum >= 0);
    mx8i_close_shard(&shard);
}

static void read_as_data(const char *path, uint8_t pick) {
    struct mx8_data *train = NULL;
    int32_t tokens[SEQ], targets[SEQ], docs[SEQ];
    struct mx8_data_options o = {.dataset = "shards",
        .path = path,
        .seq_len = SEQ,
        .vocab_size = VOCABULARY,
        .document_end = pick & 2 ? 3 : -1,
        .seed = pick,
        .shuffle = pick >> 2 & 1};
    if (mx8i_open_data(&o, &train) != MX8_OK) {
        ALWAYS(mx8_get_last_error()[0]);
        return;
    }
    for (int64_t position = 0; position < 4; position++) {
        if (mx8i_read_sample(train, position * position, tokens, targets, docs) != MX8_OK) break;
        for (int i = 0; i < SEQ; i++) ALWAYS(tokens[i] >= 0 && tokens[i] < VOCABULARY && targets[i] < VOCABULARY);
    }
    mx8i_close_data(train);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    uint8_t pick = *data++;
    const uint8_t *cut = --size && pick & 8 ? memchr(data, 0, size) : NULL;
    size_t first = cut ? (size_t)(cut + 1 - data) : 0;
    const char *path = fuzz_file(pick & 1 ? "input.u32.bin" : "input.bin", data + first, size - first);
    if (cut) fuzz_file("manifest.json", data, first - 1);
    read_alone(path);
    read_as_data(path, pick);
    fuzz_forget_files();
    return 0;
}
