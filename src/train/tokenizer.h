/* Text to tokens and back. Three families behind one interface:
 *     bytes              every byte is its own token, BOS 256, EOS 257 (train/data.h); needs no file
 *     tokenizer.json     Hugging Face, byte-level BPE (GPT-2, Llama 3 and 4, Qwen): ids equal those of `tokenizers`
 *     tiktoken ranks     lines of base64 and rank, as Llama 3's tokenizer.model
 * What a file asks for and this code cannot do is refused by name when the file is read, never approximated. */
#ifndef MX8_TRAIN_TOKENIZER_H
#define MX8_TRAIN_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>
#include "mx8/status.h"

struct mx8_tokenizer;
struct mx8_encoder;

/* Zero is the default. */
struct mx8_tokenizer_options {
    const char *pattern;     /* split pattern of a rank file; NULL: Llama 3's */
    const char *bos, *eos;   /* text of the marks; NULL: what the files beside it say, or the usual names; "none" */
    int32_t special_as_text; /* special tokens that stand in a text are text, as `encode_special_tokens` in Python */
};

/* Growing list of token ids; release with mx8i_release(list.id). */
struct mx8_tokens {
    int32_t *id;
    int64_t count, capacity;
};

/* name: "bytes", a tokenizer.json or a folder that holds one, or a rank file (*.model, *.tiktoken). */
enum mx8_status mx8i_open_tokenizer(
    const char *name, const struct mx8_tokenizer_options *options, struct mx8_tokenizer **out);
void mx8i_close_tokenizer(struct mx8_tokenizer *t);

const char *mx8i_describe_tokenizer(const struct mx8_tokenizer *t); /* "byte-level BPE, 128256 tokens, PATH" */
const char *mx8i_get_tokenizer_hash(const struct mx8_tokenizer *t); /* SHA-256 of its file in hex; "bytes" */
int64_t mx8i_count_vocabulary(const struct mx8_tokenizer *t);       /* largest id + 1 */
int32_t mx8i_get_bos(const struct mx8_tokenizer *t);                /* -1: none */
int32_t mx8i_get_eos(const struct mx8_tokenizer *t);
/* Id of a token by its text, added tokens first; -1 when there is none. */
int32_t mx8i_find_token(const struct mx8_tokenizer *t, const char *text);
/* The bytes of a token, borrowed; size 0 for an id without one. *special may be NULL. */
const uint8_t *mx8i_get_token(const struct mx8_tokenizer *t, int32_t id, size_t *size, int *special);

/* Encoders hold one thread's scratch memory and cache; the tokenizer itself is shared and never changes. */
enum mx8_status mx8i_open_encoder(const struct mx8_tokenizer *t, struct mx8_encoder **out);
void mx8i_close_encoder(struct mx8_encoder *e);
/* Appends the ids of a text, without marks. Bytes that are no UTF-8 become U+FFFD, one for each maximal invalid
 * sequence (Python's errors="replace"); the bytes tokenizer keeps them. */
enum mx8_status mx8i_encode_text(struct mx8_encoder *e, const void *text, size_t size, struct mx8_tokens *out);
int64_t mx8i_count_replaced(const struct mx8_encoder *e); /* invalid sequences so far */

enum mx8_status mx8i_append_token(struct mx8_tokens *out, int32_t id);

#endif
