#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include "fuzz.h"

static char folder[64];
static struct named {
    char path[128];
    int fd;
} files[8];
static int n_files;

static void remove_files(void) {
    for (int i = 0; i < n_files; i++) unlink(files[i].path);
    rmdir(folder);
}

const char *fuzz_folder(void) {
    if (folder[0]) return folder;
    snprintf(folder, sizeof folder, "%s/mx8-fuzz-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    ALWAYS(mkdtemp(folder));
    atexit(remove_files);
    return folder;
}

const char *fuzz_file(const char *name, const void *data, size_t size) {
    char path[128];
    int i = 0;
    snprintf(path, sizeof path, "%s/%s", fuzz_folder(), name);
    while (i < n_files && strcmp(files[i].path, path) != 0) i++;
    ALWAYS(i < 8);
    if (i == n_files) {
        n_files++;
        snprintf(files[i].path, sizeof files[i].path, "%s", path);
        files[i].fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        ALWAYS(files[i].fd >= 0);
    }
    ALWAYS(ftruncate(files[i].fd, 0) == 0 && pwrite(files[i].fd, data, size, 0) == (ssize_t)size);
    return files[i].path;
}
