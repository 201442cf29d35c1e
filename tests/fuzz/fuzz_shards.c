/* Headers of token shards: by themselves, and as training data. The first byte picks the file's name and the rest. */
#include "fuzz.h"
#include "train/source.h"

enum { SEQ = 5, VOCABULARY = 300 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    struct mx8_shard shard;
    struct mx8_data *train = NULL;
    int32_t tokens[SEQ], targets[SEQ], docs[SEQ];
    const char *path = fuzz_file(data[0] & 1 ? "input.u32.bin" : "input.bin", data + 1, size - 1);
    if (mx8i_open_shard(path, &shard) == MX8_OK) {
        int64_t sum = 0;
        for (int64_t i = 0; i < shard.count; i++) sum += mx8i_load_token(&shard, i);
        ALWAYS(sum >= 0);
        mx8i_close_shard(&shard);
    }
    struct mx8_data_options o = {.dataset = "shards",
        .path = path,
        .seq_len = SEQ,
        .vocab_size = VOCABULARY,
        .document_end = data[0] & 2 ? 3 : -1,
        .seed = data[0],
        .shuffle = data[0] >> 2 & 1};
    if (mx8i_open_data(&o, &train) != MX8_OK) {
        ALWAYS(mx8_get_last_error()[0]);
        return 0;
    }
    for (int64_t position = 0; position < 4; position++) {
        if (mx8i_read_sample(train, position * position, tokens, targets, docs) != MX8_OK) break;
        for (int i = 0; i < SEQ; i++) ALWAYS(tokens[i] >= 0 && tokens[i] < VOCABULARY && targets[i] < VOCABULARY);
    }
    mx8i_close_data(train);
    return 0;
}
