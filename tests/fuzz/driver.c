/* Runs a fuzz target without libFuzzer: every file of a corpus, then as many mutations of them as asked.
 *     fuzz_NAME FOLDER [--runs N] [--seed S] [--seconds T]
 * A finding leaves its input in ./crash-NAME.bin, from which `fuzz_NAME crash-NAME.bin` repeats it. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "fuzz.h"

enum { MOST_BYTES = 1 << 16, MOST_INPUTS = 512 }; /* of an input, of a corpus */

static struct input {
    uint8_t *data;
    size_t size;
} inputs[MOST_INPUTS];
static int n_inputs;
static uint8_t current[MOST_BYTES];
static volatile size_t current_size;
static char crash_path[256];
static uint64_t state;

static uint32_t draw(uint32_t below) {
    state += 0x9E3779B97F4A7C15u;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (uint32_t)((z ^ (z >> 31)) >> 16) % below;
}

static void keep_crash(int number) {
    int fd = open(crash_path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd >= 0 && write(fd, current, current_size) == (ssize_t)current_size) {
        static const char text[] = "input kept: ";
        if (write(2, text, sizeof text - 1) < 0 || write(2, crash_path, strlen(crash_path)) < 0 ||
            write(2, "\n", 1) < 0)
            _exit(1);
    }
    signal(number, SIG_DFL);
    raise(number);
}

static void run_current(void) {
    uint8_t *exact = malloc(current_size ? current_size : 1); /* so that sanitizers see a read behind it */
    memcpy(exact, current, current_size);
    LLVMFuzzerTestOneInput(exact, current_size);
    free(exact);
}

static void read_input(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file || n_inputs == MOST_INPUTS) {
        fprintf(stderr, "%s: cannot be read\n", path);
        exit(2);
    }
    current_size = fread(current, 1, MOST_BYTES, file);
    fclose(file);
    struct input *in = &inputs[n_inputs++];
    in->size = current_size;
    in->data = malloc(in->size ? in->size : 1);
    memcpy(in->data, current, in->size);
}

static int compare_names(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void read_inputs(const char *path) {
    struct stat info;
    struct dirent **names = NULL;
    if (stat(path, &info) == 0 && !S_ISDIR(info.st_mode)) {
        read_input(path);
        return;
    }
    int n = scandir(path, &names, NULL, compare_names);
    for (int i = 0; i < n; i++) {
        char file[1024];
        snprintf(file, sizeof file, "%s/%s", path, names[i]->d_name);
        if (names[i]->d_name[0] != '.') read_input(file);
        free(names[i]);
    }
    free(names);
}

/* ---- mutations ---- */

static void insert(size_t at, const uint8_t *bytes, size_t n) {
    if (current_size + n > MOST_BYTES) return;
    memmove(current + at + n, current + at, current_size - at);
    memcpy(current + at, bytes, n);
    current_size += n;
}

static void mutate(void) {
    static const char *const words[] = {"[", "]", "{", "}", "\"", ",", ":", "=", "0", "-1", "1e999", "null", "true",
        "9223372036854775807", "18446744073709551616", "\\u0000", "\n", "\xff", ".", "--", "_", "'''", "\"\"\"", "#"};
    size_t at = current_size ? draw((uint32_t)current_size) : 0;
    uint8_t byte = (uint8_t)draw(256);
    if (current_size == 0) {
        insert(0, &byte, 1);
        return;
    }
    switch (draw(9)) {
    case 0:
        current[at] ^= (uint8_t)(1 << draw(8));
        break;
    case 1:
        current[at] = byte;
        break;
    case 2:
        insert(at, &byte, 1);
        break;
    case 3: { /* take a piece out */
        size_t n = 1 + draw(8);
        if (n > current_size - at) n = current_size - at;
        memmove(current + at, current + at + n, current_size - at - n);
        current_size -= n;
        break;
    }
    case 4: { /* repeat a piece */
        uint8_t piece[16];
        size_t n = 1 + draw(sizeof piece);
        if (n > current_size - at) n = current_size - at;
        memcpy(piece, current + at, n);
        insert(draw((uint32_t)current_size), piece, n);
        break;
    }
    case 5: {
        const char *word = words[draw(sizeof words / sizeof words[0])];
        insert(at, (const uint8_t *)word, strlen(word));
        break;
    }
    case 6: { /* the end of another input */
        const struct input *other = &inputs[draw((uint32_t)n_inputs)];
        if (other->size == 0) break;
        size_t from = draw((uint32_t)other->size), n = other->size - from;
        if (at + n > MOST_BYTES) n = MOST_BYTES - at;
        memcpy(current + at, other->data + from, n);
        current_size = at + n;
        break;
    }
    case 7:
        current_size = at;
        break;
    default:
        current[at] = (uint8_t)(current[at] + draw(7) - 3);
        break;
    }
}

int main(int argc, char **argv) {
    long long runs = 0, seconds = 0;
    const char *name = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
    for (int i = 1; i < argc; i++) {
        long long *number = !strcmp(argv[i], "--runs") ? &runs : !strcmp(argv[i], "--seconds") ? &seconds : NULL;
        if (!strcmp(argv[i], "--seed") && i + 1 < argc)
            state = strtoull(argv[++i], NULL, 10);
        else if (number && i + 1 < argc)
            *number = atoll(argv[++i]);
        else
            read_inputs(argv[i]);
    }
    if (n_inputs == 0) {
        fprintf(stderr, "usage: %s FILE_OR_FOLDER... [--runs N] [--seed S] [--seconds T]\n", name);
        return 2;
    }
    snprintf(crash_path, sizeof crash_path, "crash-%s.bin", name);
    signal(SIGSEGV, keep_crash), signal(SIGBUS, keep_crash), signal(SIGABRT, keep_crash), signal(SIGFPE, keep_crash);
    for (int i = 0; i < n_inputs; i++) {
        current_size = inputs[i].size;
        memcpy(current, inputs[i].data, current_size);
        run_current();
    }
    time_t end = time(NULL) + (time_t)seconds;
    long long done = 0;
    for (; done < runs && (seconds == 0 || done % 256 || time(NULL) < end); done++) {
        const struct input *from = &inputs[draw((uint32_t)n_inputs)];
        current_size = from->size;
        memcpy(current, from->data, current_size);
        for (uint32_t n = 1 + draw(8); n > 0; n--) mutate();
        run_current();
    }
    printf("%s: %d inputs of the corpus, %lld mutations\n", name, n_inputs, done);
    for (int i = 0; i < n_inputs; i++) free(inputs[i].data);
    return 0;
}
