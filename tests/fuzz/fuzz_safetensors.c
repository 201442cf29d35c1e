/* Headers of safetensors files. What is accepted can be read to its last byte. */
#include "base/safetensors.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static volatile uint8_t sink;
    struct mx8_safetensors st;
    const char *path = fuzz_file("input.safetensors", data, size);
    if (mx8i_open_safetensors(path, &st) == MX8_OK) {
        uint8_t sum = 0;
        for (int64_t i = 0; i < st.count; i++) {
            const struct mx8_st_entry *e = &st.entry[i];
            for (size_t k = 0; k < e->size; k++) sum ^= ((const uint8_t *)e->data)[k];
            ALWAYS(mx8i_find_tensor(&st, e->name) == e);
            ALWAYS(e->ndim >= 0 && e->ndim <= 8);
        }
        sink = sum;
        (void)sink;
        mx8i_close_safetensors(&st);
    } else {
        ALWAYS(strstr(mx8_get_last_error(), path));
    }
    fuzz_forget_files();
    return 0;
}
