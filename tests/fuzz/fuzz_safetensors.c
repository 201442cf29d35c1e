/* Headers of safetensors files. What is accepted can be read to its last byte. */
#include "base/safetensors.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct mx8_safetensors st;
    const char *path = fuzz_file("input.safetensors", data, size);
    if (mx8i_open_safetensors(path, &st) != MX8_OK) {
        ALWAYS(strstr(mx8_get_last_error(), path));
        return 0;
    }
    uint8_t sum = 0;
    for (int64_t i = 0; i < st.count; i++) {
        const struct mx8_st_entry *e = &st.entry[i];
        for (size_t k = 0; k < e->size; k++) sum ^= ((const uint8_t *)e->data)[k];
        ALWAYS(mx8i_find_tensor(&st, e->name) == e);
        ALWAYS(e->ndim >= 0 && e->ndim <= 8);
    }
    mx8i_close_safetensors(&st);
    return sum & 0;
}
