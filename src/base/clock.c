/* Monotonic and wall-clock time; how much memory this process used and may still get. */
#include "base/clock.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

double mx8i_get_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void mx8i_format_time(char buffer[32]) {
    struct timespec now;
    struct tm local;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    size_t length = strftime(buffer, 32, "%Y-%m-%d %H:%M:%S", &local);
    snprintf(buffer + length, 32 - length, ",%03d", (int)(now.tv_nsec / 1000000));
}

int64_t mx8i_get_peak_rss(void) {
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (int64_t)usage.ru_maxrss * 1024 : 0;
}

/* The number after `name` at the start of a line of the file, or the file's first number when name is "". -1: none
 * (cgroup v2 writes "max" where there is no limit). */
static int64_t read_number(const char *path, const char *name) {
    FILE *file = fopen(path, "re");
    if (!file) return -1;
    char line[256];
    size_t length = strlen(name);
    long long number = -1;
    while (fgets(line, sizeof line, file))
        if (strncmp(line, name, length) == 0 && sscanf(line + length, "%lld", &number) == 1) break;
    fclose(file);
    return number;
}

/* What a cgroup version calls its files. Page cache that nobody uses lately counts as used but can be taken back. */
struct cgroup_names {
    const char *root, *limit, *usage, *reclaimable;
};

static int64_t read_in_folder(const char *folder, const char *file, const char *name) {
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/%s", folder, file);
    return length < (int)sizeof path ? read_number(path, name) : -1;
}

/* The least room in the group and all its parents; INT64_MAX when nothing limits it. Inside a container the group's
 * path may not exist below the mounted root; then only the parents that do exist count. */
static int64_t get_cgroup_room(const struct cgroup_names *names, const char *group) {
    char folder[PATH_MAX];
    int64_t least = INT64_MAX;
    int length = snprintf(folder, sizeof folder, "%s%s", names->root, group);
    if (length >= (int)sizeof folder) return least;
    for (;;) {
        int64_t limit = read_in_folder(folder, names->limit, "");
        int64_t usage = read_in_folder(folder, names->usage, "");
        if (limit >= 0 && usage >= 0) {
            int64_t reclaimable = read_in_folder(folder, "memory.stat", names->reclaimable);
            int64_t room = limit - usage + (reclaimable > 0 ? reclaimable : 0);
            if (room < least) least = room < 0 ? 0 : room;
        }
        char *slash = strrchr(folder, '/');
        if (strlen(folder) <= strlen(names->root) || !slash) return least;
        *slash = 0;
    }
}

int64_t mx8i_get_available_memory(void) {
    static const struct cgroup_names v1 = {
        "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
    static const struct cgroup_names v2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};
    int64_t kilobytes = read_number("/proc/meminfo", "MemAvailable:");
    int64_t least = kilobytes < 0 ? INT64_MAX : kilobytes * 1024;
    FILE *file = fopen("/proc/self/cgroup", "re");
    char line[PATH_MAX];
    while (file && fgets(line, sizeof line, file)) { /* "0::/group" in version 2, "7:memory:/group" in version 1 */
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *group++ = 0;
        int is_v2 = controllers[1] == 0;
        if (!is_v2 && strcmp(controllers + 1, "memory") != 0) continue;
        int64_t room = get_cgroup_room(is_v2 ? &v2 : &v1, group);
        if (room < least) least = room;
    }
    if (file) fclose(file);
    return least == INT64_MAX ? 0 : least;
}
