/* Tokenizer files (tokenizer.json, or rank files when the first byte is odd) and a text encoded with those accepted. */
#include "base/memory.h"
#include "fuzz.h"
#include "train/tokenizer.h"

static void encode(const struct mx8_tokenizer *t) {
    static const char text[] = "Hello, w\xc3\xb6rld  \xff\n 123 <|end|> \xe6\xbc\xa2";
    struct mx8_encoder *e = NULL;
    struct mx8_tokens tokens = {0};
    if (mx8i_open_encoder(t, &e) == MX8_OK && mx8i_encode_text(e, text, sizeof text - 1, &tokens) == MX8_OK)
        for (int64_t i = 0; i < tokens.count; i++) ALWAYS(tokens.id[i] >= 0 && tokens.id[i] < mx8i_count_vocabulary(t));
    mx8i_release(tokens.id);
    mx8i_close_encoder(e);
}

/* Past the vocabulary's ends, too. */
static void look_at_tokens(const struct mx8_tokenizer *t) {
    static volatile uint8_t sink;
    size_t length;
    int64_t n = mx8i_count_vocabulary(t);
    uint8_t sum = 0;
    for (int64_t id = -1; id <= n && id < 2000; id++) {
        const uint8_t *bytes = mx8i_get_token(t, (int32_t)id, &length, NULL);
        if (length > 0) sum ^= bytes[0] ^ bytes[length - 1];
    }
    sink = sum;
    (void)sink;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct mx8_tokenizer *t = NULL;
    if (size == 0) return 0;
    const char *path = fuzz_file(data[0] & 1 ? "input.model" : "input.json", data + 1, size - 1);
    if (mx8i_open_tokenizer(path, NULL, &t) == MX8_OK) {
        look_at_tokens(t);
        ALWAYS(mx8i_describe_tokenizer(t)[0] && strlen(mx8i_get_tokenizer_hash(t)) == 64);
        encode(t);
    } else {
        ALWAYS(mx8_get_last_error()[0]);
    }
    mx8i_close_tokenizer(t);
    fuzz_forget_files();
    return 0;
}
