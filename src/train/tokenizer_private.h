/* Parts of a tokenizer, in the order that a text meets them: repair of UTF-8, added tokens, NFC, split, merges. */
#ifndef MX8_TRAIN_TOKENIZER_PRIVATE_H
#define MX8_TRAIN_TOKENIZER_PRIVATE_H

#include "train/tokenizer.h"

#define MX8_MAX_SPLITS 8

/* Growing bytes; release with mx8i_release(b.data). */
struct mx8_bytes {
    uint8_t *data;
    size_t size, capacity;
};
enum mx8_status mx8i_grow_bytes(struct mx8_bytes *b, size_t capacity);
enum mx8_status mx8i_append_bytes(struct mx8_bytes *b, const void *data, size_t size);

/* tokenizer_unicode.c. Decoding takes valid UTF-8 only. */
uint32_t mx8i_decode_utf8(const uint8_t *text, size_t *length);
size_t mx8i_encode_utf8(uint32_t code, uint8_t out[4]);
/* The size of the valid beginning; *bad is the length of the maximal invalid sequence after it (0 at the end). */
size_t mx8i_check_utf8(const uint8_t *text, size_t size, size_t *bad);
enum mx8_status mx8i_repair_utf8(struct mx8_bytes *out, const uint8_t *text, size_t size, int64_t *replaced);
int mx8i_is_white(uint32_t code); /* White_Space */
/* GPT-2's visible characters for bytes: the bytes of a token from its text in a vocabulary; 0: not such a text. */
int mx8i_unmap_bytes(const char *text, size_t size, struct mx8_bytes *out);

/* tokenizer_nfc.c */
int mx8i_is_nfc(const uint8_t *text, size_t size); /* 1: certainly; 0: has to be normalized to know */
enum mx8_status mx8i_normalize_nfc(struct mx8_bytes *out, const uint8_t *text, size_t size);

/* tokenizer_vocab.c: tokens by id and by their bytes, merges by the pair of ids. */
struct mx8_vocab_token {
    size_t offset;
    uint32_t size;
    uint8_t present, special, mergeable; /* mergeable: found by its bytes, so part of the BPE vocabulary */
};
struct mx8_vocab {
    struct mx8_bytes bytes;
    struct mx8_vocab_token *token;
    int64_t count, capacity; /* largest id + 1 */
    int32_t *slot;
    uint64_t mask;
};
uint64_t mx8i_hash_bytes(const uint8_t *bytes, size_t size);
enum mx8_status mx8i_set_token(struct mx8_vocab *v, int64_t id, const void *bytes, size_t size, int mergeable);
enum mx8_status mx8i_index_vocab(struct mx8_vocab *v); /* after the last mergeable token */
int32_t mx8i_look_up_bytes(const struct mx8_vocab *v, const uint8_t *bytes, size_t size); /* -1: none */
void mx8i_close_vocab(struct mx8_vocab *v);

struct mx8_merge {
    uint64_t pair; /* left id + 1 in the upper half, right id in the lower; 0: a free slot */
    uint32_t rank;
    int32_t id;
};
struct mx8_merges {
    struct mx8_merge *slot;
    uint64_t mask;
    int64_t count;
};
enum mx8_status mx8i_open_merges(struct mx8_merges *m, int64_t expected);
/* A pair that comes again takes the new rank. */
enum mx8_status mx8i_add_merge(struct mx8_merges *m, int32_t left, int32_t right, uint32_t rank, int32_t id);
const struct mx8_merge *mx8i_find_merge(const struct mx8_merges *m, int32_t left, int32_t right); /* NULL: none */

/* tokenizer_added.c: tokens that are cut out of a text before anything else, leftmost first, then longest. */
struct mx8_added_token {
    const char *text; /* owned */
    size_t size;
    int32_t id, lstrip, rstrip, special;
};
struct mx8_added {
    struct mx8_added_token *token; /* sorted by text */
    int64_t count, capacity;
    uint8_t starts[256]; /* first bytes of some token */
};
struct mx8_added_match {
    size_t start, stop;
    int32_t id;
};
enum mx8_status mx8i_add_added(struct mx8_added *a, const void *text, size_t size, struct mx8_added_token properties);
void mx8i_sort_added(struct mx8_added *a);
/* The first match at or after `from`; 0: none. */
int mx8i_match_added(const struct mx8_added *a, const uint8_t *text, size_t size, size_t from, int specials,
    struct mx8_added_match *out);
void mx8i_close_added(struct mx8_added *a);

/* tokenizer_split.c: what becomes of the matches of a pattern, in Hugging Face's words. */
enum mx8_split_behavior {
    MX8_SPLIT_ISOLATED,
    MX8_SPLIT_REMOVED,
    MX8_SPLIT_CONTIGUOUS,
    MX8_SPLIT_MERGED_WITH_PREVIOUS,
    MX8_SPLIT_MERGED_WITH_NEXT
};
struct mx8_split {
    void *code; /* pcre2_code; NULL: the text passes whole */
    enum mx8_split_behavior behavior;
    int32_t invert, prefix_space;
};
enum mx8_regex_dialect { MX8_REGEX_ONIGURUMA, MX8_REGEX_TIKTOKEN, MX8_REGEX_LITERAL };
/* `file` is for messages. */
enum mx8_status mx8i_compile_split(
    struct mx8_split *s, const char *pattern, size_t size, enum mx8_regex_dialect dialect, const char *file);
void mx8i_close_split(struct mx8_split *s);
extern const char mx8i_gpt2_pattern[], mx8i_llama3_pattern[];

enum mx8_tokenizer_kind { MX8_TOKENIZER_BYTES, MX8_TOKENIZER_JSON, MX8_TOKENIZER_RANKS };

struct mx8_tokenizer {
    enum mx8_tokenizer_kind kind;
    char *path, *description;
    char hash[65];
    struct mx8_vocab vocab;
    struct mx8_merges merges;
    struct mx8_added added_raw, added_normalized; /* cut out before and after NFC */
    struct mx8_split split[MX8_MAX_SPLITS];
    int32_t n_splits;
    int32_t byte_id[256];
    int32_t id_limit; /* ids in the file are below it */
    int32_t nfc, whole_first; /* whole_first: a piece that is a token needs no merges (ignore_merges) */
    int32_t special_as_text;
    int32_t bos, eos;
};

/* tokenizer_json.c, tokenizer_ranks.c: `text` is the file's, 0-terminated. */
enum mx8_status mx8i_read_tokenizer_json(struct mx8_tokenizer *t, const char *text, size_t size);
enum mx8_status mx8i_read_ranks(struct mx8_tokenizer *t, const char *text, size_t size, const char *pattern);
/* The marks of a tokenizer_config.json, as text, NULL where it has none; release both. */
enum mx8_status mx8i_read_marks(const char *path, char **bos, char **eos);
/* Sets byte_id, or names the byte that has no token. */
enum mx8_status mx8i_find_bytes(struct mx8_tokenizer *t);

#define MX8_CACHE_KEY 27
#define MX8_CACHE_IDS 8
/* A cached piece: one line of the processor's cache. */
struct mx8_cached_piece {
    int32_t id[MX8_CACHE_IDS];
    uint8_t key[MX8_CACHE_KEY];
    uint8_t size, count;
    uint8_t unused[3];
};

struct mx8_encoder {
    const struct mx8_tokenizer *t;
    struct mx8_tokens *out;
    struct mx8_bytes repaired, normalized, prefixed;
    struct mx8_cached_piece *cache;
    size_t cache_mask;
    void *match[MX8_MAX_SPLITS]; /* pcre2_match_data of each split */
    void *match_context, *jit_stack;
    void *merge_block; /* scratch of long pieces */
    size_t merge_block_size;
    int64_t replaced;
};

/* tokenizer_bpe.c */
enum mx8_status mx8i_open_cache(struct mx8_encoder *e);
enum mx8_status mx8i_encode_piece(struct mx8_encoder *e, const uint8_t *piece, size_t size);
/* tokenizer_split.c */
enum mx8_status mx8i_open_matches(struct mx8_encoder *e);
void mx8i_close_matches(struct mx8_encoder *e);
enum mx8_status mx8i_split_text(struct mx8_encoder *e, int32_t level, const uint8_t *text, size_t size);

#endif
