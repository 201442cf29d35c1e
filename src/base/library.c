/* Finding a shared object beside this one. */
#include "base/library.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Folder of the object this code is in, with a slash; "" when unknown. */
static void find_own_folder(char *folder, size_t size) {
    static const char here = 0;
    char program[900];
    Dl_info info;
    folder[0] = 0;
    if (!dladdr(&here, &info) || !info.dli_fname) return;
    const char *file = info.dli_fname;
    if (!strchr(file, '/')) { /* a program is called by its first word, which has no folder when PATH found it */
        ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
        if (n <= 0) return;
        program[n] = 0;
        file = program;
    }
    const char *slash = strrchr(file, '/');
    size_t length = slash ? (size_t)(slash - file) + 1 : 0;
    if (length == 0 || length >= size) return;
    memcpy(folder, file, length);
    folder[length] = 0;
}

void *mx8i_open_library(const char *name, const char *variable, int global, char *why, size_t why_size) {
    char path[1024], folder[900];
    const char *named = getenv(variable);
    const int is_named = named && named[0];
    find_own_folder(folder, sizeof folder);
    snprintf(path, sizeof path, "%s%s", folder, name);
    const char *places[] = {is_named ? named : path, name};
    why[0] = 0;
    for (int i = 0; i < (is_named ? 1 : 2); i++) {
        void *library = dlopen(places[i], RTLD_NOW | (global ? RTLD_GLOBAL : RTLD_LOCAL));
        if (library) return library;
        const char *message = dlerror();
        if (i == 0 || strstr(why, "No such file")) snprintf(why, why_size, "%s", message ? message : "dlopen failed");
    }
    return NULL;
}
