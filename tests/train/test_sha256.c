/* SHA-256 against published digests, and the processor's instructions against the portable rounds. */
#include "train/job_testing.h"
#include "train/sha256.h"

static void hash(const void *data, size_t size, size_t part, char hex[65]) {
    struct mx8_sha256 h;
    mx8i_begin_sha256(&h);
    for (size_t at = 0; at < size; at += part)
        mx8i_add_sha256(&h, (const char *)data + at, size - at < part ? size - at : part);
    mx8i_end_sha256(&h, hex);
}

/* FIPS 180-4's own examples. */
static void test_published_digests(void **state) {
    (void)state;
    static const struct {
        const char *text, *hex;
    } cases[] = {{"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"}};
    char hex[65];
    for (size_t i = 0; i < COUNT(cases); i++) {
        hash(cases[i].text, strlen(cases[i].text), 7, hex);
        assert_string_equal(hex, cases[i].hex);
    }
    char *million = malloc(1000000);
    memset(million, 'a', 1000000);
    for (size_t part = 1000; part <= 1000000; part *= 10) {
        hash(million, 1000000, part + 3, hex);
        assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    }
    free(million);
}

/* Whole blocks through both, at any alignment. */
static void test_both_ways_agree(void **state) {
    (void)state;
    uint8_t bytes[64 * 9 + 1];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)(i * i * 7 + i / 3);
    for (size_t blocks = 0; blocks <= 9; blocks++) {
        for (size_t shift = 0; shift < 2; shift++) {
            struct mx8_sha256 fast, portable;
            mx8i_begin_sha256(&fast);
            mx8i_begin_sha256(&portable);
            mx8i_add_sha256(&fast, bytes + shift, 64 * blocks);
            mx8i_mix_sha256(portable.state, bytes + shift, blocks);
            assert_memory_equal(fast.state, portable.state, sizeof fast.state);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_digests),
        cmocka_unit_test(test_both_ways_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
